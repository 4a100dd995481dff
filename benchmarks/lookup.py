"""What a lookup costs: over HTTP against an empty route, and in an engine against a dict.

    python benchmarks/lookup.py

Makes databases of 1,000 and 1,000,000 tuned rows in a temporary folder (2 GB, some minutes) and
serves each with `pfatune serve`, beside an empty FastAPI route on uvicorn with the same settings.
One client process asks them in turn, for shapes at random, round after round; every ratio is of
medians over these rounds. Then `TunedConfigs.lookup` is timed against a dict with the same keys.
Results go to benchmarks/results/lookup.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import cast

import uvloop

from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.source import kernel_digest
from pfatune.kernel.tuned import TunedConfigs

RESULTS = Path(__file__).parent / "results" / "lookup.json"
CONNECTIONS = 16
PFATUNE = str(Path(sys.executable).with_name("pfatune"))
EMPTY = """
import socket, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/config")
async def empty() -> dict[str, str]:
    return {}
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen(2048)
print(f"at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, proxy_headers=False)
uvicorn.Server(config).run(sockets=[listening])
"""


def shapes(count: int) -> list[PfaShape]:
    """So many shapes of one family, from 1 to 1000 requests."""
    rows = -(-count // 1000)
    return list(islice((PfaShape(b, 128 * n) for n in range(1, rows + 1) for b in range(1, 1001)), count))


def make_database(path: Path, wanted: Sequence[PfaShape]) -> None:
    """A database in which these shapes are tuned: one of them by the store, the others as copies of its rows."""
    first = wanted[0]
    with Store.open(path) as store:
        env = store.environment_id(Environment("sim", "950PR", "0.2.0", "2.13.0", kernel_digest(), "benchmark"))
        config = canonical(default_config(first), first.family)
        (default,) = store.add(env, [Measurement(Workload(first), config, Kind.OK, 2000.0)])
        verified = store.add_verification(env, Verification(first.family, config, True, 0.0, (first,)))
        store.promote(env, default, default, verified)
    sizes = [(shape.b, shape.s2, 1000.0 + index % 997) for index, shape in enumerate(wanted[1:])]
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(measurement)") if row[1] != "id"]
        copied = ", ".join({"b": "?", "s2": "?", "cost": "?"}.get(name, name) for name in columns)
        order = [name for name in columns if name in ("b", "s2", "cost")]
        values = [tuple(dict(zip(("b", "s2", "cost"), size, strict=True))[name] for name in order) for size in sizes]
        insert = f"INSERT INTO measurement ({', '.join(columns)}) SELECT {copied} FROM measurement WHERE id = 1"
        connection.executemany(insert, values)
        connection.execute(
            "INSERT INTO tuned_config (environment_id, b, s2, s1, nq, nkv, qd, block_size, seq_digest, measurement_id, "
            "default_id, verification_id) "
            "SELECT environment_id, b, s2, s1, nq, nkv, qd, block_size, seq_digest, id, 1, 1 "
            "FROM measurement WHERE id > 1 ORDER BY id"
        )
    connection.close()


@contextmanager
def server(command: Sequence[str], environ: dict[str, str]) -> Iterator[tuple[int, int]]:
    """A server that says where it is; its port and its process id."""
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            raise SystemExit(f"lookup.py: {command[0]} did not start: {line!r}")
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait()


class Asker(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, requests: Sequence[bytes], expected: bytes) -> None:
        self.requests, self.expected = requests, expected
        self.answers = 0
        self.wrong = 0
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self._buffer.find(b"content-length: ") + 16
        length = end + 4 + int(self._buffer[start : self._buffer.find(b"\r", start)])
        if len(self._buffer) < length:
            return
        self.wrong += self.expected not in self._buffer
        self._buffer = b""
        self.answers += 1
        self._ask()

    def _ask(self) -> None:
        self._transport.write(self.requests[self.answers % len(self.requests)])


async def rate(port: int, requests: Sequence[bytes], expected: bytes, seconds: float) -> float:
    """Requests answered in a second."""
    loop = asyncio.get_running_loop()
    askers = []
    for number in range(CONNECTIONS):
        mine = requests[number::CONNECTIONS]
        _, asker = await loop.create_connection(lambda mine=mine: Asker(mine, expected), "127.0.0.1", port)
        askers.append(asker)
    await asyncio.sleep(0.3)
    before, started = sum(asker.answers for asker in askers), time.perf_counter()
    await asyncio.sleep(seconds)
    answered = (sum(asker.answers for asker in askers) - before) / (time.perf_counter() - started)
    for asker in askers:
        asker._transport.abort()
    if sum(asker.wrong for asker in askers) or not answered:
        raise SystemExit(f"lookup.py: not every answer from port {port} holds {expected!r}")
    return answered


def resident_mib(process: int) -> float:
    """Memory of a process."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def ask(wanted: Sequence[PfaShape], seed: int) -> list[bytes]:
    picked = random.Random(seed).choices(wanted, k=50_000)
    return [f"GET /config?b={s.b}&s2={s.s2} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for s in picked]


async def over_http(folder: Path, sizes: Sequence[int], rounds: int, seconds: float) -> dict[str, object]:
    environ = {**os.environ, "PFATUNE_CACHE": str(folder), "PFATUNE_PORT": "0"}
    rates: dict[str, list[float]] = {}
    ready: dict[str, float] = {}
    memory: dict[str, float] = {}
    with ExitStack() as stack:
        port, _ = stack.enter_context(server([sys.executable, "-c", EMPTY], environ))
        ports = {"empty route": (port, b"{}")}
        for size in sizes:
            started = time.perf_counter()
            command = [PFATUNE, "serve", "--no-worker", "--db", str(folder / f"{size}.db")]
            name = f"{size} rows"
            port, process = stack.enter_context(server(command, environ))
            ports[name] = port, b'"provenance":"exact"'
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=600):
                pass
            ready[name] = time.perf_counter() - started
            memory[name] = resident_mib(process)
        for turn in range(rounds):
            for name, (port, expected) in ports.items():
                wanted = shapes(sizes[0] if name == "empty route" else int(name.split()[0]))
                rates.setdefault(name, []).append(await rate(port, ask(wanted, turn), expected, seconds))
                print(f"round {turn + 1}: {name}: {rates[name][-1]:,.0f} requests/s", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "requests_per_second": rates,
        "medians": medians,
        "seconds_until_ready": ready,
        "resident_mib": memory,
        "over_empty_route": {f"{n} rows": medians[f"{n} rows"] / medians["empty route"] for n in sizes},
        "last_over_first": medians[f"{sizes[-1]} rows"] / medians[f"{sizes[0]} rows"],
    }


def in_engine(database: Path, wanted: Sequence[PfaShape], rounds: int) -> dict[str, float]:
    """Microseconds of a lookup against a dict that has the same shapes as keys."""
    picker = random.Random(1)
    longest = max(shape.s2 for shape in wanted)
    with TunedConfigs(database, refresh_seconds=3600) as tuned:
        plain = {shape: tuned.lookup(shape) for shape in wanted}
        assert all(answer.provenance == "exact" for answer in plain.values())
        # Other objects than the keys, as an engine makes them.
        known = [PfaShape(s.b, s.s2) for s in picker.choices(wanted, k=20_000)]
        times: dict[str, list[float]] = {"dict": [], "lookup": [], "lookup of a new shape": []}
        for _ in range(rounds):
            new = [PfaShape(picker.randint(1, 1000), picker.randint(1, longest)) for _ in range(2_000)]
            for name, get, asked in (
                ("dict", plain.__getitem__, known),
                ("lookup", tuned.lookup, known),
                ("lookup of a new shape", tuned.lookup, new),
            ):
                started = time.perf_counter()
                for shape in asked:
                    get(shape)
                times[name].append((time.perf_counter() - started) / len(asked) * 1e6)
    medians = {f"{name}, us": statistics.median(values) for name, values in times.items()}
    return {**medians, "lookup over dict": medians["lookup, us"] / medians["dict, us"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 1_000_000], help="tuned rows of each database")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pfatune-lookup-") as name:
        folder = Path(name)
        for size in options.rows:
            started = time.perf_counter()
            make_database(folder / f"{size}.db", shapes(size))
            print(f"{size:,} rows made in {time.perf_counter() - started:.0f} s", flush=True)
        http = uvloop.run(over_http(folder, options.rows, options.rounds, options.seconds))
        engine = {
            f"{size} rows": in_engine(folder / f"{size}.db", shapes(size)[:20_000], options.rounds)
            for size in options.rows
        }
    document = {"python": sys.version.split()[0], "cores": os.cpu_count(), "http": http, "engine": engine}
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for size in options.rows:
        print(f"{size:,} rows: {http['over_empty_route'][f'{size} rows']:.2f} of the empty route")  # type: ignore[index]  # a dict
        print(f"{size:,} rows, in an engine: {json.dumps(engine[f'{size} rows'])}")
    print(f"{options.rows[-1]:,} rows over {options.rows[0]:,} rows: {http['last_over_first']:.2f}")


if __name__ == "__main__":
    main()
