"""What the pages are made of: plots that stay in their frame, an even scale, importance, and grids of any size."""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import page_tools
import pytest
from cli_tools import ENVIRONMENT
from hypothesis import given
from hypothesis import strategies as st

from pfatune.api.http.problems import ProblemError
from pfatune.api.pages import history as history_module
from pfatune.api.pages import importance as importance_module
from pfatune.api.pages import tuned as tuned_module
from pfatune.api.pages.grid import MOST, STEPS, family_of, grid_of, step_of
from pfatune.api.pages.history import history
from pfatune.api.pages.importance import Importance, ImportanceCache, importance
from pfatune.api.pages.tuned import TunedIndex
from pfatune.api.pages.words import tune_curl, when
from pfatune.autotune.space import space_for
from pfatune.db import Kind, Measurement
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.ladder import Entry, Ladder
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload
from pfatune.kernel.soc import soc

SHAPE = PfaShape(2, 1024)
WORKLOAD = Workload(SHAPE)
SPACE = space_for([WORKLOAD], soc("950PR"))
_COLOUR = r"--([a-z-]+): #(fff|\w{6})"
CSS = Path(history_module.__file__).with_name("static") / "pages.css"


def configs(count: int) -> list[KernelConfig]:
    rng = random.Random(1)
    found = [SPACE.random(rng) for _ in range(count)]
    return [config for config in found if config is not None]


CONFIGS = configs(40)
costs = st.none() | st.floats(1e-3, 1e12)


def rows_of(values: Sequence[float | None]) -> list[Measurement]:
    return [
        Measurement(WORKLOAD, CONFIGS[n % len(CONFIGS)], Kind.CRASHED if value is None else Kind.OK, value, id=n + 1)
        for n, value in enumerate(values)
    ]


# The history.


@given(values=st.lists(costs, max_size=40), default=st.none() | st.floats(1e-3, 1e12))
def test_plot_stays_in_its_frame(values: list[float | None], default: float | None) -> None:
    plot = history(rows_of(values), "cycles", default)
    known = [value for value in values if value is not None]
    assert (plot is None) == (not known)
    if plot is None:
        return
    places = [(point.x, point.y) for point in plot.points]
    places += [(x, y) for x1, y1, x2, y2 in plot.best for x, y in ((x1, y1), (x2, y2))]
    assert all(0 <= x <= 100 and 0 <= y <= plot.axis_y for x, y in places)
    assert plot.default_y is None or 0 <= plot.default_y <= plot.axis_y
    assert len(plot.points) == len(known)
    assert sum(lane.count for lane in plot.lanes) == len(values) - len(known)
    assert plot.y_ticks
    assert plot.x_ticks
    assert all(-1e-6 <= y <= plot.axis_y for y, _ in plot.y_ticks)


@given(values=st.lists(costs, min_size=1, max_size=40).filter(any))
def test_best_line_falls_from_the_first_to_the_least(values: list[float | None]) -> None:
    plot = history(rows_of(values), "cycles", None)
    assert plot is not None
    assert all(y2 >= y1 and x2 >= x1 for x1, y1, x2, y2 in plot.best)  # down the page is cheaper
    for (_, _, x, y), (x1, y1, _, _) in pairwise(plot.best):
        assert (x, y) == (x1, y1)
    assert plot.best[0][:2] == (plot.points[0].x, plot.points[0].y)
    assert plot.best[-1][3] == max(point.y for point in plot.points)


def test_scale_is_logarithmic_where_costs_are_far_apart() -> None:
    near, far = history(rows_of([100.0, 120.0]), "cycles", None), history(rows_of([100.0, 5000.0]), "cycles", None)
    assert near is not None
    assert far is not None
    assert (near.is_log, far.is_log) == (False, True)
    assert [text for _, text in far.y_ticks] == ["100", "200", "500", "1,000", "2,000", "5,000"]
    gaps = [round(a - b) for (a, _), (b, _) in pairwise(far.y_ticks)]
    assert gaps[0] == gaps[3]  # from 100 to 200 as from 1,000 to 2,000


def test_marks_of_an_even_scale_are_round() -> None:
    plot = history(rows_of([0.123, 0.2]), "us", 0.15)
    assert plot is not None
    assert [text for _, text in plot.y_ticks] == ["0.12", "0.14", "0.16", "0.18", "0.2"]


def test_faults_of_the_environment_are_not_shown() -> None:
    fault = Measurement(WORKLOAD, CONFIGS[0], Kind.ENVIRONMENT_FAULT, None)
    plot = history([fault, *rows_of([5.0, None])], "cycles", None)
    assert plot is not None
    assert [lane.kind for lane in plot.lanes] == ["crashed"]
    assert plot.points[0].title.startswith("#1: 5 cycles")


def test_very_many_points_are_thinned_but_never_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MOST_POINTS", 20)
    values = [1000.0 - (n == 333) * 900 for n in range(500)]
    plot = history(rows_of(values), "cycles", None)
    assert plot is not None
    assert 20 <= len(plot.points) <= 23
    assert plot.left_out == 500 - len(plot.points)
    assert any(point.title.startswith("#334: 100 cycles") for point in plot.points)


# The scale.


@given(st.floats(0.5, 50), st.floats(0.5, 50))
def test_faster_is_never_lighter(one: float, other: float) -> None:
    slow, fast = sorted((one, other))
    assert 0 <= step_of(slow) <= step_of(fast) < STEPS


@pytest.mark.parametrize(
    ("speedup", "step"), [(0.5, 0), (1.0, 0), (1.09, 0), (1.1, 1), (2.0, 8), (4.0, 16), (99.0, 23)]
)
def test_steps_of_the_scale(speedup: float, step: int) -> None:
    assert step_of(speedup) == step


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_are_even_and_readable() -> None:
    css = CSS.read_text()
    colours = dict(re.findall(r"td\.(c\d+) \{ background: #(\w{6}); \}", css))
    assert list(colours) == [f"c{step}" for step in range(STEPS)]
    white = set(re.findall(r"\.(c\d+)", next(line for line in css.splitlines() if line.startswith("td:is("))))
    lightness = [116 * luminance(colour) ** (1 / 3) - 16 for colour in colours.values()]
    for before, after in pairwise(lightness):
        assert 2.5 < before - after < 4.2
    for name, colour in colours.items():
        ink = 1.0 if name in white else 0.0
        bright, dark = sorted((ink, luminance(colour)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, name


def test_inks_are_readable_in_light_and_dark() -> None:
    blocks = re.findall(r":root \{(.*?)\}", CSS.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        full = {name: hexadecimal * (6 // len(hexadecimal)) for name, hexadecimal in re.findall(_COLOUR, block)}
        for ink in ("ink", "faint", "link", "best", "dot"):
            for ground in ("paper", "soft"):
                bright, dark = sorted((luminance(full[ink]), luminance(full[ground])), reverse=True)
                assert (bright + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


# The grid.


def ladder_of(shapes: Sequence[PfaShape]) -> Ladder:
    ladder = Ladder()
    for shape in shapes:
        config = canonical(default_config(shape), shape.family)
        ladder.add(shape, Entry(config, 100.0, 100.0 + shape.b, 7, ""))
    ladder.settle()
    return ladder


@given(st.sets(st.tuples(st.integers(1, 1024), st.integers(1, 131072)), min_size=1, max_size=80), st.data())
def test_pages_of_a_grid_show_every_shape_once(sizes: set[tuple[int, int]], data: st.DataObject) -> None:
    families = TunedIndex().families("e", ladder_of([PfaShape(b, s2) for b, s2 in sizes]))
    tuned = families[PfaFamily()]
    assert len(tuned) == len(sizes)
    found = []
    for b_from in tuned.batches[::MOST]:
        for s2_from in tuned.lengths[::MOST]:
            grid = grid_of(tuned, ENVIRONMENT, b_from, s2_from)
            assert len(grid.rows) <= MOST
            for row in grid.rows:
                assert len(row.cells) == len(grid.s2.values) <= MOST
                found += [(row.b, s2) for s2, cell in zip(grid.s2.values, row.cells, strict=True) if cell]
    assert sorted(found) == sorted(sizes)
    # From anywhere there is something to see.
    anywhere = grid_of(tuned, ENVIRONMENT, data.draw(st.integers(0, 10**12)), data.draw(st.integers(0, 10**12)))
    assert anywhere.rows
    assert anywhere.s2.values


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from((1, 2, 4))), min_size=1, max_size=30))
def test_families_are_counted(given_shapes: list[tuple[int, int]]) -> None:
    shapes = {PfaShape(b, 1024, nkv=nkv) for b, nkv in given_shapes}
    families = TunedIndex().families("e", ladder_of(sorted(shapes)))
    assert sum(map(len, families.values())) == len(shapes)
    for family, tuned in families.items():
        speedups = [1 + shape.b / 100 for shape in shapes if shape.family == family]
        assert len(tuned) == len(speedups)
        assert tuned.speedup == pytest.approx(math.prod(speedups) ** (1 / len(speedups)))
        assert tuned.best == max(speedups)
        assert tuned.get(10, 1024) is None
    sizes = [len(one) for one in families.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert family_of(None, families) == next(iter(families))


def test_index_follows_the_ladder() -> None:
    index, ladder = TunedIndex(), ladder_of([SHAPE])
    index.families("e", ladder)
    config = canonical(default_config(SHAPE), SHAPE.family)
    ladder.add(SHAPE, Entry(config, 50.0, 100.0, 8, ""))
    for _ in range(1000):
        if index.families("e", ladder)[SHAPE.family].best == 2.0:
            return
        threading.Event().wait(0.001)
    pytest.fail("the index still tells what is served no longer")


def test_ladder_that_changes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(Ladder):
        left = 3

        def __iter__(self):  # type: ignore[no-untyped-def]
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("dictionary changed size during iteration")
            return super().__iter__()

    assert TunedIndex().families("e", Changing()) == {}
    monkeypatch.setattr(tuned_module, "_TRIES", 2)
    with pytest.raises(ProblemError, match="changes too fast"):
        TunedIndex().families("e", Changing())


# Importance.


def measured(value_of: dict[str, float] | None, count: int = 40) -> list[Measurement]:
    """Measurements whose cost is one parameter's doing, or nobody's."""
    rows = []
    for number, config in enumerate(CONFIGS[:count]):
        params = SPACE.params(config)
        assert params is not None
        cost = 100.0 if value_of is None else sum(factor * int(params[name]) for name, factor in value_of.items())
        rows.append(Measurement(WORKLOAD, config, Kind.OK, cost, id=number + 1))
    return rows


@pytest.mark.parametrize("name", ["s2_tile", "v1_n", "stitch"])
def test_parameter_that_decides_comes_first(name: str) -> None:
    found = importance(ENVIRONMENT, measured({name: 10.0}))
    assert found.shares[0][0] == name
    assert sum(share for _, share in found.shares) == pytest.approx(1)
    assert found.configurations == len({row.config for row in measured(None)})


def test_importance_needs_configurations_and_differences() -> None:
    assert "there are 0" in ImportanceCache().of(ENVIRONMENT, []).reason
    assert "there are 19" in importance(ENVIRONMENT, measured(None, 19)).reason
    assert "cost the same" in importance(ENVIRONMENT, measured(None)).reason
    repeated = measured({"s2_tile": 1.0}, 1) * 50
    assert "there are 1." in importance(ENVIRONMENT, repeated).reason


def test_failures_count_as_slow() -> None:
    rows = [
        Measurement(WORKLOAD, row.config, Kind.CRASHED, None, id=row.id) if row.config.tile.s2_tile >= 512 else row
        for row in measured({"stitch": 0.0, "c1_k_l0": 1.0})
    ]
    assert "s2_tile" in [name for name, _ in importance(ENVIRONMENT, rows).shares[:4]]


def test_importance_is_computed_once_for_the_same_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fake(_: object, rows: Sequence[Measurement]) -> Importance:
        asked.append(len(rows))
        return Importance()

    monkeypatch.setattr(importance_module, "importance", fake)
    cache, rows = ImportanceCache(), measured({"s2_tile": 1.0})
    for some in (rows, rows, rows[:-1], rows):
        cache.of(ENVIRONMENT, some)
    assert asked == [len(rows), len(rows) - 1]


# Words.


def test_times_are_utc() -> None:
    assert when("2026-01-02T03:04:05+02:00") == "2026-01-02 01:04 UTC"
    assert when("2026-01-02T03:04:05") == "2026-01-02 03:04 UTC"
    assert when(None) == when("") == ""


def test_host_is_quoted_in_commands() -> None:
    assert tune_curl(SHAPE, "950PR", "http://a'; rm -rf b").startswith("curl 'http://a'\"'\"'; rm -rf b/tune' --json ")


def test_made_up_lanes_end_when_they_should() -> None:
    assert page_tools.swimlane(4321).makespan == 4321
