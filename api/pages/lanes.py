"""The swim lanes of two measurements as a picture."""

from __future__ import annotations

import io
from collections import OrderedDict

import anyio

from ...db.store import Store
from ..http.measurements import swimlane
from ..http.problems import invalid
from .words import shape_text

_KEPT = 16  # pictures, of some 300 kB each


class LanePictures:
    """Draws pictures one after another, and remembers the last few."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._one_at_a_time: anyio.CapacityLimiter | None = None

    async def png(self, default: int, tuned: int) -> bytes:
        """The lanes of the default's measurement above those of the tuned one; one of them if they are the same.

        Raises:
            ProblemError: a measurement or its trace is missing, or they are of different workloads or environments.
            StoreError: the store cannot be read.
        """
        key = default, tuned
        if key not in self._known:
            if self._one_at_a_time is None:
                self._one_at_a_time = anyio.CapacityLimiter(1)
            # Matplotlib is for one thread at a time; waiting here takes no thread from anyone.
            drawn = await anyio.to_thread.run_sync(self._picture, key, limiter=self._one_at_a_time)
            self._known[key] = drawn
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _picture(self, key: tuple[int, int]) -> bytes:
        known = self._known.get(key)  # drawn for somebody else while this one waited
        return known if known is not None else _draw(self._store, *key)


def _draw(store: Store, default: int, tuned: int) -> bytes:
    from ...autotune.swimlane_picture import draw

    named = [("default", swimlane(store, default))]
    if tuned != default:
        named.append(("tuned", swimlane(store, tuned)))
    rows = store.measurement(default), store.measurement(tuned)
    assert rows[0] is not None
    assert rows[1] is not None
    if (rows[0][0], rows[0][1].workload) != (rows[1][0], rows[1][1].workload):
        raise invalid("tuned", f"measurement {tuned} is of another shape or environment than {default}: give one pair")
    environment = store.environments()[rows[0][0]]
    buffer = io.BytesIO()
    title = f"Paged flash attention, {shape_text(rows[0][1].workload)}"
    draw(named, buffer, title=title, subtitle=f"{environment.soc} in PyPTO's cost model: no time on a device")
    return buffer.getvalue()
