"""Prior covariances of many points with the known ones, computed once as long as they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .candidates import Point
from .encoding import Codes, Encoding
from .surrogate import Array, Surrogate


class Cross:
    """Covariances of known points with the points of a pool; each is kept while pool and parameters stay the same.

    A whole table is asked about again and again, and only one point more is known each time.
    """

    def __init__(self, encoding: Encoding, model: Surrogate) -> None:
        self._encoding = encoding
        self._model = model
        self._pool: Sequence[Point] = ()
        self._codes: Codes = np.zeros((0, 0), dtype=np.intp)
        self._rows: dict[Point, Array] = {}
        self._fits = 0

    def covariances(self, known: Sequence[Point], pool: Sequence[Point]) -> Array:
        """(known, pool); what is kept is of the pool that was asked for last, told by identity."""
        if pool is not self._pool:
            self._pool, self._codes, self._rows = pool, self._encoding.codes(pool), {}
        if self._fits != self._model.fits:
            self._fits, self._rows = self._model.fits, {}
        missing = [point for point in dict.fromkeys(known) if point not in self._rows]
        if missing:
            rows = self._model.covariance(self._encoding.codes(missing), self._codes)
            self._rows.update(zip(missing, rows, strict=True))
        return np.array([self._rows[point] for point in known]).reshape(len(known), len(pool))

    @property
    def codes(self) -> Codes:
        """Of the pool that was asked for last."""
        return self._codes
