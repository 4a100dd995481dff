"""Choosing rows of a matrix, against trying all sets of rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfatune.autotune.cover import Matrix, best, smallest

LIMITS = st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Matrix, list[float]]:
    """Regrets with a 0 in every column, ties and unknown ones often, and weights.

    Regrets are equal or differ by far more than rounding does, which a test of its own is about.
    """
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    values = st.sampled_from([0.0, 0.03, 0.05, 0.1, 0.3, 0.9, math.inf]) | st.integers(0, 2_000_000).map(
        lambda number: number / 1e6
    )
    regrets = np.array(draw(st.lists(values, min_size=rows * columns, max_size=rows * columns)))
    regrets = regrets.reshape(rows, columns)
    for column in range(columns):
        regrets[draw(st.integers(0, rows - 1)), column] = 0
    return regrets, draw(st.lists(st.sampled_from([1.0, 2.0, 0.1]), min_size=columns, max_size=columns))


def sets(rows: int, most: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, min(rows, most) + 1):
        yield from itertools.combinations(range(rows), count)


def worst_and_mean(regrets: Matrix, weights: list[float], rows: tuple[int, ...]) -> tuple[float, float]:
    """Where a column has no known regret, a number that is larger than all of them."""
    least = np.minimum(regrets[list(rows)].min(axis=0), 1e9)
    return float(least.max()), float(least @ np.array(weights) / sum(weights))


@given(problems(), LIMITS)
def test_no_fewer_rows_keep_the_limit_and_as_few_have_no_less_mean(
    problem: tuple[Matrix, list[float]], limit: float
) -> None:
    regrets, weights = problem
    found = smallest(regrets, weights, limit)
    assert found.proven
    assert list(found.rows) == sorted(set(found.rows))
    worst, mean = worst_and_mean(regrets, weights, found.rows)
    assert worst <= limit + 1e-9
    within = [rows for rows in sets(*regrets.shape) if worst_and_mean(regrets, weights, rows)[0] <= limit]
    fewest = min(map(len, within))
    assert len(found.rows) == fewest
    least = min(worst_and_mean(regrets, weights, rows)[1] for rows in within if len(rows) == fewest)
    assert mean == pytest.approx(least, abs=1e-9)


@given(problems(), st.integers(1, 4))
def test_no_other_set_of_the_size_has_less_worst_regret_nor_as_little_and_less_mean(
    problem: tuple[Matrix, list[float]], count: int
) -> None:
    regrets, weights = problem
    found = best(regrets, weights, count)
    assert found.proven
    assert 1 <= len(found.rows) <= count
    worst, mean = worst_and_mean(regrets, weights, found.rows)
    everything = [worst_and_mean(regrets, weights, rows) for rows in sets(len(regrets), count)]
    least = min(one for one, _ in everything)
    assert worst == pytest.approx(least, abs=1e-9)
    assert mean == pytest.approx(min(mean for one, mean in everything if one <= least + 1e-11), rel=1e-9, abs=1e-9)


@given(problems(), LIMITS, st.randoms(use_true_random=False))
def test_the_choice_is_worth_the_same_in_any_order_of_rows(
    problem: tuple[Matrix, list[float]], limit: float, chance: object
) -> None:
    regrets, weights = problem
    order = list(range(len(regrets)))
    chance.shuffle(order)  # type: ignore[attr-defined]  # a random.Random
    one = smallest(regrets, weights, limit)
    other = smallest(regrets[order], weights, limit)
    assert len(one.rows) == len(other.rows)
    mine = worst_and_mean(regrets, weights, one.rows)
    theirs = worst_and_mean(regrets[order], weights, other.rows)
    assert mine == pytest.approx(theirs, abs=1e-9)


@given(problems(), LIMITS, st.integers(1, 5))
def test_a_search_cut_short_still_keeps_the_limit_or_the_number(
    problem: tuple[Matrix, list[float]], limit: float, steps: int
) -> None:
    regrets, weights = problem
    found = smallest(regrets, weights, limit, max_steps=steps)
    assert worst_and_mean(regrets, weights, found.rows)[0] <= limit + 1e-9
    if found.proven:
        assert len(found.rows) == len(smallest(regrets, weights, limit).rows)
    cut = best(regrets, weights, 2, max_steps=steps)
    assert 1 <= len(cut.rows) <= 2


def test_what_rounding_adds_to_a_regret_is_nothing() -> None:
    regrets = np.array([[0.05 + 1e-14, 0.0], [0.0, 0.06]])
    assert smallest(regrets, [1, 1], 0.05).rows == (0,)
    assert smallest(np.array([[0.05 + 1e-10, 0.0], [0.0, 0.06]]), [1, 1], 0.05).rows == (0, 1)
    # Row 0 is better by what rounding may bring, row 1 by much on the mean.
    assert best(np.array([[0.3, 0.3], [0.3 + 1e-14, 0.0], [0.0, 0.4]]), [1, 1], 1).rows == (1,)


def test_a_column_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no row is within 0\.05"):
        smallest(np.array([[0.0, math.inf], [0.1, 0.2]]), [1, 1], 0.05)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, math.nan], [1.0, 1.0, 1.0]])
def test_weights_that_do_not_fit_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="give a finite number above 0 for each column"):
        smallest(np.zeros((2, 2)), weights, 0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,)])
def test_an_empty_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="give a row and a column at least"):
        best(np.zeros(shape), [], 1)
