"""A model of what a configuration will cost: a Gaussian process whose kernel adds up effects of fields.

Tile sizes and options mostly act one by one and in pairs: the logarithm of a kernel's cost is
close to a sum of such effects. So the covariance of two points is

    a · mean of k_f  +  b · mean of k_f · k_g over pairs  +  c · product of all k_f

with a Matérn 5/2 kernel k_f for each field (additive Gaussian processes: Duvenaud, Nickisch and
Rasmussen, NeurIPS 2011). It learns a main effect from a few points, where a product kernel needs
points close by. As fields have few values, every k_f is a small table, and a covariance a sum of
table look-ups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_SQRT5 = math.sqrt(5.0)
_JITTER = 1e-7
#: Log of what is expected before any data: a length scale of half a field's range, all three
#: parts alike, little noise; and how far from there the data may pull, in the same scale.
_LENGTH, _PART, _NOISE = math.log(0.5), math.log(0.5), -5.0
_LENGTH_SPREAD, _PART_SPREAD, _NOISE_SPREAD = 0.8, 1.0, 1.5
_LENGTH_BOUNDS, _PART_BOUNDS, _NOISE_BOUNDS = (-2.5, 2.5), (-6.0, 3.0), (-9.0, 0.0)


class Surrogate:
    """The process over coded points, for one or several outputs that share its parameters.

    ``tables[c]`` are the distances between the values of code ``c``. Of the codes, only the first ``plain``
    act in pairs and all together; the others just add their effect.

    Outputs are expected to be centred, and of about unit variance. ``fit`` is optional and slow, ``learn`` fast.
    """

    def __init__(self, tables: Sequence[Array], plain: int) -> None:
        self._distances = list(tables)
        self._plain = plain
        count = len(tables)
        self._expected = np.array([_LENGTH] * count + [_PART] * 3 + [_NOISE])
        self._spread = np.array([_LENGTH_SPREAD] * count + [_PART_SPREAD] * 3 + [_NOISE_SPREAD])
        self._bounds = [_LENGTH_BOUNDS] * count + [_PART_BOUNDS] * 3 + [_NOISE_BOUNDS]
        self._parameters = self._expected.copy()
        self._points: Indices = np.zeros((0, count), dtype=np.intp)
        self._factor: tuple[Array, bool] = (np.zeros((0, 0)), True)
        self._weights: Array = np.zeros((0, 0))
        self.fits = 0  #: how often the parameters changed

    def fit(self, points: Indices, outputs: Array, noise: Array | None = None, *, iterations: int) -> None:
        """Find the parameters under which the outputs are likeliest, starting from the present ones.

        ``points`` is (n, fields), ``outputs`` (n, outputs), ``noise`` (n,) extra variance of each point.
        """
        gathered = [distance[np.ix_(points[:, f], points[:, f])] for f, distance in enumerate(self._distances)]
        stacked = np.stack(gathered)
        extra = np.zeros(len(points)) if noise is None else noise
        found = minimize(
            self._unlikelihood,
            self._parameters,
            args=(stacked, outputs, extra),
            jac=True,
            method="L-BFGS-B",
            bounds=self._bounds,
            options={"maxiter": iterations},
        )
        if np.all(np.isfinite(found.x)):
            self._parameters = found.x
            self.fits += 1

    def learn(self, points: Indices, outputs: Array, noise: Array | None = None) -> None:
        """Take these points, and no others, as what is known; shapes as in ``fit``."""
        self._points = points
        covariance = self.covariance(points, points)
        covariance[np.diag_indices_from(covariance)] += self.noise + _JITTER + (0.0 if noise is None else noise)
        self._factor = cho_factor(covariance, lower=True)
        self._weights = cho_solve(self._factor, outputs)

    def predict(self, points: Indices) -> tuple[Array, Array]:
        """Means (n, outputs) and standard deviation (n,), the same for each output, without the noise."""
        return self.predict_from(self.covariance(self._points, points))

    def predict_from(self, across: Array) -> tuple[Array, Array]:
        """The same by the covariances of the points learnt with those asked for: (learnt, n)."""
        explained = solve_triangular(self._factor[0], across, lower=True, check_finite=False)
        variance = self.variance - np.einsum("ij,ij->j", explained, explained)
        return across.T @ self._weights, np.sqrt(np.maximum(variance, 1e-10))

    def covariance(self, ones: Indices, others: Indices) -> Array:
        """Prior covariance of each of ``ones`` with each of ``others``."""
        main, joint, parts = self._scales()
        count = len(self._distances)
        total = np.zeros((len(ones), len(others)))
        inner, squares, product = np.zeros_like(total), np.zeros_like(total), np.ones_like(total)
        for f, distance in enumerate(self._distances):
            table = _matern(distance / math.exp(self._parameters[f]))
            kernel = table[np.ix_(ones[:, f], others[:, f])]
            total += kernel
            if f < self._plain:
                squares += kernel * kernel
                product *= kernel
                inner += kernel
        pairs = (inner * inner - squares) / max(1, self._plain * (self._plain - 1))
        return main * total / count + joint * pairs + parts * product

    @property
    def variance(self) -> float:
        """Prior variance of an output."""
        main, joint, parts = self._scales()
        return main + (joint if self._plain > 1 else 0.0) + parts

    @property
    def noise(self) -> float:
        """Variance of the noise."""
        return math.exp(self._parameters[-1])

    def _scales(self) -> tuple[float, float, float]:
        main, joint, parts = np.exp(self._parameters[-4:-1])
        return float(main), float(joint), float(parts)

    def _unlikelihood(self, parameters: Array, distances: Array, outputs: Array, extra: Array) -> tuple[float, Array]:
        """Negative log of the posterior of the parameters, and its gradient."""
        count = len(distances)
        scaled = _SQRT5 * distances / np.exp(parameters[:count])[:, None, None]
        decay = np.exp(-scaled)
        kernels = (1 + scaled + scaled * scaled / 3) * decay
        main, joint, parts = np.exp(parameters[count : count + 3])
        noise = math.exp(parameters[-1])
        plain = self._plain
        total, product = kernels.sum(0), kernels[:plain].prod(0)
        inner = kernels[:plain].sum(0)
        pair_count = max(1, plain * (plain - 1) / 2)
        a = main * total / count
        b = joint * (inner * inner - (kernels[:plain] * kernels[:plain]).sum(0)) / 2 / pair_count
        c = parts * product
        covariance = a + b + c
        covariance[np.diag_indices_from(covariance)] += noise + _JITTER + extra
        try:
            factor = cho_factor(covariance, lower=True)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(parameters)
        inverse = cho_solve(factor, np.eye(len(covariance)))
        weights = inverse @ outputs
        columns = outputs.shape[1]
        value = 0.5 * float((outputs * weights).sum()) / columns + float(np.log(np.diag(factor[0])).sum())
        slope = 0.5 * (inverse - weights @ weights.T / columns)
        by_length = scaled * scaled * (1 + scaled) / 3 * decay
        slopes = np.full_like(kernels, main / count)
        slopes[:plain] += joint * (inner - kernels[:plain]) / pair_count + c / np.maximum(kernels[:plain], 1e-12)
        by_length *= slopes
        gradient = np.concatenate(
            [
                np.tensordot(by_length, slope, ([1, 2], [0, 1])),
                [(slope * a).sum(), (slope * b).sum(), (slope * c).sum(), np.trace(slope) * noise],
            ]
        )
        away = (parameters - self._expected) / self._spread
        return value + 0.5 * float(away @ away), gradient + away / self._spread


def _matern(distance: Array) -> Array:
    scaled = _SQRT5 * distance
    return np.asarray((1 + scaled + scaled * scaled / 3) * np.exp(-scaled))
