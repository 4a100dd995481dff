"""Prior covariances of many points with the known ones, computed once as long as they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .candidates import Point
from .encoding import Codes, Encoding
from .surrogate import Array, Surrogate


class Cross:
    """Covariances of known points with the points of a pool.

    From one question to the next, one point more is known, and few points of the pool are others: only
    their covariances are computed, until the parameters of the model change.
    """

    def __init__(self, encoding: Encoding, model: Surrogate) -> None:
        self._encoding = encoding
        self._model = model
        self._fits = 0
        self._pool: Sequence[Point] = ()
        self._slots: dict[Point, int] = {}
        self._order: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._codes: Codes = encoding.codes([])
        self._rows: dict[Point, Array] = {}  # of known points, by slot

    def covariances(self, known: Sequence[Point], pool: Sequence[Point]) -> Array:
        """(known, pool)."""
        if self._fits != self._model.fits:
            self._fits, self._rows = self._model.fits, {}
        if pool is not self._pool:
            self._take(pool)
        missing = [point for point in dict.fromkeys(known) if point not in self._rows]
        if missing:
            rows = self._model.covariance(self._encoding.codes(missing), self._codes)
            self._rows.update(zip(missing, rows, strict=True))
        if not known:
            return np.zeros((0, len(pool)))
        return np.stack([self._rows[point] for point in known])[:, self._order]

    @property
    def codes(self) -> Codes:
        """Of the pool that was asked for last."""
        return np.asarray(self._codes[self._order])

    def _take(self, pool: Sequence[Point]) -> None:
        """Give every point of the pool a slot; those that had one keep it."""
        kept = {point: self._slots[point] for point in pool if point in self._slots}
        used = set(kept.values())
        free = [slot for slot in range(len(self._codes)) if slot not in used]
        new = [point for point in pool if point not in kept]
        if len(new) > len(free):
            more = len(new) - len(free)
            free += range(len(self._codes), len(self._codes) + more)
            self._codes = np.concatenate([self._codes, np.zeros((more, self._codes.shape[1]), dtype=np.intp)])
            self._rows = {point: np.concatenate([row, np.zeros(more)]) for point, row in self._rows.items()}
        if new:
            slots = np.array(free[: len(new)], dtype=np.intp)
            self._codes[slots] = self._encoding.codes(new)
            kept.update(zip(new, slots.tolist(), strict=True))
            if self._rows:
                known = list(self._rows)
                block = self._model.covariance(self._encoding.codes(known), self._codes[slots])
                for point, values in zip(known, block, strict=True):
                    self._rows[point][slots] = values
        self._slots, self._pool = kept, pool
        self._order = np.array([kept[point] for point in pool], dtype=np.intp)
