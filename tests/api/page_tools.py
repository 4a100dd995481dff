"""A database with something of everything for the pages to show, and the service beside a browser."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import uvicorn
from cli_tools import ENVIRONMENT

from pfatune.api.http.app import create_app
from pfatune.autotune.space import Params, space_for
from pfatune.autotune.swimlane import Lane, Swimlane, Task
from pfatune.db import Job, JobRequest, JobState, Kind, Lease, Measurement, Store, Verification
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.soc import soc

_VOID = ("meta", "link", "input", "img", "br", "wbr", "hr")

#: What a compiler may well print, and what must stay text.
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)> \"'&amp; {{ 7 * 7 }}"
#: Ten tuned shapes of two families.
TUNED = (
    *(PfaShape(b, s2) for b, s2 in ((1, 2048), (2, 1024), (4, 8192), (16, 1024), (16, 8192), (64, 8192))),
    *(PfaShape(b, s2, nkv=2) for b, s2 in ((1, 1024), (16, 4096), (16, 8192), (32, 8192))),
)
#: Of these the long history, with failures of every kind and the traces.
SHOWN = TUNED[4]
FAILURES = (
    (Kind.REJECTED, f"error: {HOSTILE}"),
    (Kind.DOES_NOT_FIT, "UB is full: 262144 of 253952 bytes\nsecond line"),
    (Kind.CRASHED, "signal 11"),
    (Kind.TIMEOUT, "took longer than 300 s"),
)


class Element:
    """An element of a page: its attributes, its text and what is in it."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        """The text as a reader sees it, on one line."""
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join("".join(parts).split())

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Every element inside with that tag and those attributes (``class_``: one of its classes)."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if child._is(tag, attributes):
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    def one(self, tag: str = "", **attributes: str) -> Element:
        (found,) = self.all(tag, **attributes)
        return found

    def table(self) -> list[list[str]]:
        """The texts of the cells, row by row."""
        return [[cell.text for cell in row.all() if cell.tag in ("td", "th")] for row in self.all("tr")]

    def _is(self, tag: str, attributes: dict[str, str]) -> bool:
        classes = self.attributes.get("class", "").split()
        return tag in ("", self.tag) and all(
            value in classes if name == "class_" else self.attributes.get(name) == value
            for name, value in attributes.items()
        )


class _Reader(HTMLParser):
    """Strict about what browsers forgive: every element is closed, in order, and no attribute comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> inside <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(text: str) -> Element:
    """A page, taken apart."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == [reader.root], [element.tag for element in reader.open]
    return reader.root


def swimlane(makespan: int, cores: int = 4, tasks: int = 12, seed: int = 1) -> Swimlane:
    """Lanes of some cube and twice as many vector cores that end after ``makespan`` cycles."""
    rng = random.Random(seed)
    lanes = []
    for index in range(3 * cores):
        step = makespan // tasks
        made = []
        for n in range(tasks):
            end = makespan if (index, n) == (0, tasks - 1) else n * step + rng.randint(step // 2, step - 1)
            made.append(Task(n * step, end, index % 3, n, index))
        lanes.append(Lane("AIC" if index < cores else "AIV", index, tuple(made)))
    return Swimlane(tuple(lanes))


def cost_of(shape: PfaShape, params: Params) -> float:
    """A made-up cost in whole cycles: s2_tile and vec_nbuffer decide most of it."""
    size = shape.b * shape.s2 * 3.0
    depth = {"auto": 1.6, 1: 1.8, 2: 1.5, 4: 1.25, 8: 1.0, 16: 1.02}[params["vec_nbuffer"]]
    return round(size * depth * (1 + 200 / int(params["s2_tile"])) + 40_000 + 7 * int(params["stitch"]))


def add_history(store: Store, shape: PfaShape, count: int, *, failures: bool = False, seed: int = 0) -> list[int]:
    """Measure the default and some random configurations; the ids, the default's first."""
    workload, rng = Workload(shape), random.Random(seed)
    space = space_for([workload], soc("950PR"))
    default = canonical(default_config(shape), shape.family)
    rows = [Measurement(workload, default, Kind.OK, cost_of(shape, _params(space.params(default))), seconds=3.25)]
    for number in range(1, count):
        config = space.random(rng)
        assert config is not None
        if failures and number % 6 == 5:
            kind, message = FAILURES[number // 6 % len(FAILURES)]
            rows.append(Measurement(workload, config, kind, None, seconds=1.5, message=message))
        else:
            rows.append(
                Measurement(workload, config, Kind.OK, cost_of(shape, _params(space.params(config))), seconds=2)
            )
    return store.add(store.environment_id(ENVIRONMENT), rows)


def _params(found: Params | None) -> Params:
    assert found is not None
    return found


def promote_best(store: Store, shape: PfaShape, ids: list[int]) -> tuple[int, int]:
    """Serve the fastest of the measurements; its id and the default's."""
    env = store.environment_id(ENVIRONMENT)
    rows = [found[1] for one in ids if (found := store.measurement(one))]
    best = min((row for row in rows if row.cost is not None), key=lambda row: row.cost or 0.0)
    assert best.id is not None
    verdict = store.add_verification(env, Verification(shape.family, best.config, True, 0.0004, (shape,)))
    store.promote(env, best.id, ids[0], verdict)
    return best.id, ids[0]


def fill(store: Store) -> dict[JobState, int]:
    """Ten tuned shapes of two families, traces of one, and a job in every state; the jobs' ids."""
    for number, shape in enumerate(TUNED):
        shown = shape == SHOWN
        ids = add_history(store, shape, 60 if shown else 6, failures=shown, seed=number)
        best, default = promote_best(store, shape, ids)
        if shown:
            for one, seed in ((default, 1), (best, 2)):
                found = store.measurement(one)
                assert found is not None
                store.traces.add(one, swimlane(int(found[1].cost or 0), seed=seed).to_json())
    return add_jobs(store)


def request(*shapes: PfaShape, trials: int = 40, priority: int = 0) -> JobRequest:
    return JobRequest(tuple(Workload(shape) for shape in shapes), trials=trials, priority=priority)


def progress(trials: int, *shapes: tuple[PfaShape, float | None, float | None], **more: Any) -> dict[str, Any]:
    """What a worker reports: every shape with its default's and its best cost."""
    return {
        "families": 1,
        "families_done": 0,
        "trials": trials,
        "budget_trials": 40,
        "known": 0,
        "running": 2,
        "verifying": 1,
        "tracing": 0,
        "kinds": {"ok": trials - 1, "rejected": 1} if trials else {},
        "unit": "cycles",
        "shapes": [
            {"shape": shape.to_json(), "actual_seq": None, "default_cost": default, "best_cost": best}
            for shape, default, best in shapes
        ],
        "speedup": None,
        "last": "0123456789abcdef ok",
        "elapsed_seconds": 61.0,
        "seconds_left": 95.0,
        **more,
    }


def claim(store: Store) -> tuple[Job, Lease]:
    found = store.jobs.claim("host:1", seconds=600, backend="sim", soc="950PR")
    assert found is not None
    return found


def add_jobs(store: Store) -> dict[JobState, int]:
    """A job in every state, the running one with two shapes half-way."""
    made: dict[JobState, int] = {}
    for number, state in enumerate((JobState.DONE, JobState.FAILED, JobState.CANCELLED), start=1):
        shape = PfaShape(3, 1024 * number)
        store.jobs.submit(request(shape))
        job, lease = claim(store)
        store.jobs.report(lease, progress(40, (shape, 2000.0, 1000.0), speedup=2.0))
        store.jobs.finish(lease, state, reason="" if state is JobState.DONE else f"{state}: {HOSTILE}")
        made[state] = job.id
    shapes = PfaShape(5, 2048), PfaShape(6, 2048)
    store.jobs.submit(request(*shapes))
    job, lease = claim(store)
    store.jobs.report(lease, progress(13, (shapes[0], 300_000.0, 200_000.0), (shapes[1], 9.0, None), speedup=1.5))
    made[JobState.RUNNING] = job.id
    made[JobState.QUEUED] = store.jobs.submit(request(PfaShape(7, 2048), priority=3))[0].id
    return made


def serve_many(store: Store, batches: int, lengths: int) -> None:
    """Serve a grid of shapes, each with a configuration that is faster than the default."""
    env = store.environment_id(ENVIRONMENT)
    config: KernelConfig | None = None
    for b in range(1, batches + 1):
        for n in range(1, lengths + 1):
            shape = PfaShape(b, 128 * n, s1=2)
            default = canonical(default_config(shape), shape.family)
            config = config or space_for([Workload(shape)], soc("950PR")).random(random.Random(5))
            assert config is not None
            cost = 1000.0 * b * n
            rows = [
                Measurement(Workload(shape), default, Kind.OK, cost * (1 + (b * n) % 40 / 10)),
                Measurement(Workload(shape), config, Kind.OK, cost),
            ]
            ids = store.add(env, rows)
            if (b, n) == (1, 1):
                verdict = store.add_verification(env, Verification(shape.family, config, True, 0.0, ()))
            store.promote(env, ids[1], ids[0], verdict)


@contextmanager
def listening(store: Store) -> Iterator[str]:
    """The service on a free port of this machine, in a thread; its URL."""
    server = uvicorn.Server(uvicorn.Config(create_app(store, refresh_seconds=0.05), log_level="warning"))
    bound = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        bound.close()


def fill_file(path: Path) -> None:
    """The same in a file, for a look by eye: ``python page_tools.py FILE``, then ``pfatune serve --db FILE``."""
    with Store.open(path) as store:
        fill(store)
        serve_many(store, 30, 34)


if __name__ == "__main__":
    import sys

    fill_file(Path(sys.argv[1]))
