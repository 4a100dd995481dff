"""An engine in a process of its own: one that forks, and one that may write nowhere near the database."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ladder_tools import small_ladder
from served_files import snapshot_of

from pfatune.kernel import sources
from pfatune.kernel.shapes import PfaShape
from pfatune.kernel.tuned import TunedConfigs

SHAPE = PfaShape(2, 1024)


def number(tuned: TunedConfigs) -> int:
    return tuned.lookup(SHAPE).config.stitch_function_max_num


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def in_child(work: Callable[[], None]) -> Callable[[], None]:
    """Fork, do the work in the child, and return what waits for it to end well."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def join() -> None:
        _, status = os.waitpid(child, 0)
        assert status == 0, status

    return join


def fork(path: Path) -> None:
    """In the middle of a refresh, of which the child knows nothing."""
    with TunedConfigs(path, refresh_seconds=0.05) as tuned:
        assert number(tuned) == 100

        def work() -> None:
            assert number(tuned) == 100
            assert tuned.wait(0)
            path.write_bytes(snapshot_of(small_ladder(101)))
            until(lambda: number(tuned) == 101)
            tuned.refresh()
            tuned.close()
            assert not tuned._thread.is_alive()

        with tuned._lock:
            join = in_child(work)
        join()
        until(lambda: number(tuned) == 101)
        assert tuned._thread.is_alive()


def fork_closed(path: Path) -> None:
    """What was closed stays closed in a child."""
    tuned = TunedConfigs(path)
    tuned.close()
    in_child(lambda: (until(lambda: not tuned._thread.is_alive()), None)[1])()


def fork_while_reading(path: Path) -> None:
    """A fork waits until SQLite is not in use, but not for ever; the child can use SQLite."""
    for seconds, least in ((0.3, 0.2), (3.0, 0.9)):
        held = threading.Event()

        def hold(held: threading.Event = held, seconds: float = seconds) -> None:
            with sources._reading:
                held.set()
                time.sleep(seconds)

        def work() -> None:
            with TunedConfigs(path) as tuned:
                assert number(tuned) == 100

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        start = time.monotonic()
        join = in_child(work)
        assert least < time.monotonic() - start < 2.5
        join()
        thread.join()
    assert sources._reading.acquire(timeout=1)


def read_only(path: Path) -> None:
    """As someone who may not write into the folder."""
    path.chmod(0o444)
    path.parent.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)
    with TunedConfigs(path, copy=None) as tuned:
        assert number(tuned) == 100, tuned.status


if __name__ == "__main__":
    {work.__name__: work for work in (fork, fork_closed, fork_while_reading, read_only)}[sys.argv[1]](Path(sys.argv[2]))
