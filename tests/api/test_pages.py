"""The pages for people: the right numbers, hostile text as text, and a page for every question."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_tools
import pytest
from cli_tools import ENVIRONMENT
from fastapi.testclient import TestClient
from http_tools import check_problem, client_of, promote
from page_tools import FAILURES, HOSTILE, SHOWN, TUNED, Element, read

from pfatune.api.http.app import create_app
from pfatune.api.pages import lanes as lanes_module
from pfatune.api.pages import routes
from pfatune.api.pages import shape as shape_module
from pfatune.api.pages.words import shape_query
from pfatune.api.serving import News
from pfatune.db import JobState, Kind, Measurement, Store
from pfatune.db.errors import DatabaseLockedError
from pfatune.kernel.config import FIELD_NAMES, KernelConfig, canonical, default_config
from pfatune.kernel.ladder import Entry
from pfatune.kernel.shapes import PfaShape, Workload

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, dict[JobState, int]]]:
    with Store.open(tmp_path_factory.mktemp("pages") / "a.db") as store:
        yield store, page_tools.fill(store)


@pytest.fixture(scope="module")
def shared(filled: tuple[Store, dict[JobState, int]]) -> Iterator[TestClient]:
    """A client of the filled store, for tests that change nothing."""
    with client_of(filled[0]) as client:
        yield client


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


def get(client: TestClient, path: str, status: int = 200) -> Element:
    response = client.get(path, headers=HTML)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    check_safe(read(response.text), response)
    return read(response.text)


def check_safe(page: Element, response: Any) -> None:
    """Nothing inline, nothing from elsewhere, and the headers that would stop it."""
    assert "script-src 'self'" in response.headers["content-security-policy"]
    for element in page.all():
        assert element.tag != "style"
        for name, value in element.attributes.items():
            assert name != "style"
            assert not name.startswith("on")
            if name in ("href", "src", "action", "data-events"):
                assert value.startswith(("/", "#")) or value == "https://ui.perfetto.dev", value
    for script in page.all("script"):
        assert script.attributes["src"] == "/static/live.js"
        assert script.text == ""
    for table in page.all("table"):
        assert table.all("th") or "aria-label" in table.attributes
    assert len(page.all("h1")) == 1
    assert page.one("head").one("title").text


def facts(page: Element) -> dict[str, str]:
    """Names and values of the page's description lists."""
    names, values = page.all("dt"), page.all("dd")
    return {name.text: value.text for name, value in zip(names, values, strict=True)}


def test_every_page_of_an_empty_store(store: Store) -> None:
    with client_of(store) as client:
        assert "Nothing is tuned yet" in get(client, "/").one("main").text
        assert "There are none" in get(client, "/jobs").one("main").text
        assert "Nothing is tuned yet" in get(client, "/grid").one("main").text
        assert "Nothing was measured" in get(client, "/shape?b=2&s2=1024").one("main").text


@pytest.mark.slow
def test_pages_are_no_api(shared: TestClient) -> None:
    paths = shared.get("/openapi.json").json()["paths"]
    assert not {"/", "/jobs", "/grid", "/shape", "/static/{name}"} & set(paths)


def test_pages_only_read(shared: TestClient) -> None:
    for path in ("/", "/jobs", "/grid", "/shape"):
        check_problem(shared.post(path, json={}), 405)


def test_read_only_store(filled: tuple[Store, dict[JobState, int]]) -> None:
    with Store.open(filled[0].database.name, read_only=True) as store, client_of(store) as client:
        for path in ("/", "/jobs", f"/jobs/{filled[1][JobState.RUNNING]}", "/grid", f"/shape?{shape_query(SHOWN)}"):
            get(client, path)


# The start.


def test_start_counts_families(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    page = get(shared, "/")
    rows = [row for row in page.table() if row[0].startswith("s1=")]
    assert [row[0] for row in rows] == [
        "s1=1 nq=12 nkv=1 qd=128 block_size=128",
        "s1=1 nq=12 nkv=2 qd=128 block_size=128",
    ]
    assert [row[2] for row in rows] == ["6", "4"]
    speedups = [filled[0].tuned(None, Workload(shape))[0].speedup for shape in TUNED[6:]]
    product = speedups[0] * speedups[1] * speedups[2] * speedups[3]
    assert rows[1][3:] == [f"{product**0.25:.2f}×", f"{max(speedups):.2f}×"]


def test_start_says_what_costs_are(shared: TestClient) -> None:
    text = get(shared, "/").one("main").text
    assert "Nothing has run on hardware" in text
    assert "cycles of PyPTO's cost model" in text


def test_start_lists_open_jobs(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    links = [link.attributes["href"] for link in get(shared, "/").all("a")]
    jobs = filled[1]
    open_jobs = [f"/jobs/{jobs[JobState.RUNNING]}", f"/jobs/{jobs[JobState.QUEUED]}"]
    assert [link for link in links if re.fullmatch(r"/jobs/\d+", link)] == open_jobs


def test_start_goes_on_without_the_database(shared: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object, **__: object) -> None:
        raise DatabaseLockedError(name="a.db", seconds=5)

    monkeypatch.setattr("pfatune.db.jobs.JobQueue.list", locked)
    page = get(shared, "/")
    assert "a.db: another process has kept it locked" in page.one("main").text
    assert any("nkv=2" in link.text for link in page.all("a"))
    get(shared, "/grid")
    problem = check_problem(shared.get("/jobs"), 503)
    response = shared.get("/jobs", headers=HTML)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert problem["detail"] in read(response.text).one("main").text


@pytest.mark.parametrize("asked", [SHOWN, PfaShape(15, 8000), PfaShape(3, 77, nkv=3)])
def test_shape_goes_on_without_the_database(
    shared: TestClient, monkeypatch: pytest.MonkeyPatch, asked: PfaShape
) -> None:
    known = facts(get(shared, f"/shape?{shape_query(asked)}"))

    def locked(*_: object, **__: object) -> None:
        raise DatabaseLockedError(name="a.db", seconds=5)

    monkeypatch.setattr("pfatune.db.engine.Database.read", locked)
    page = get(shared, f"/shape?{shape_query(asked)}")
    told = facts(page)
    assert "a.db: another process has kept it locked" in page.one("main").text
    assert "Nothing was measured" not in page.one("main").text
    assert told == {name: known[name] for name in told}
    assert {"Configuration", "Provenance"} <= told.keys()
    assert ("Cost" in told) == ("Cost" in known)
    assert page.one(class_="fields-table").table()[1:]


# Jobs.


def test_jobs_by_state(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    everything = get(shared, "/jobs").one("table").table()[1:]
    assert [int(row[0]) for row in everything] == sorted(filled[1].values(), reverse=True)
    for state, job in filled[1].items():
        rows = get(shared, f"/jobs?state={state}").one("table").table()[1:]
        assert [(int(row[0]), row[2]) for row in rows] == [(job, state)]


def test_pages_of_jobs_hold_each_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "JOBS_ON_PAGE", 3)
    ids = [store.jobs.submit(page_tools.request(PfaShape(b, 128)))[0].id for b in range(1, 8)]
    seen: list[int] = []
    with client_of(store) as client:
        path = "/jobs?state=queued"
        while path:
            page = get(client, path)
            seen += [int(row[0]) for row in page.one("table").table()[1:]]
            path = next((link.attributes["href"] for link in page.all("a", rel="next")), "")
    assert seen == ids[::-1]


def test_running_job(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    job = filled[1][JobState.RUNNING]
    page = get(shared, f"/jobs/{job}")
    assert page.one(class_="wide-bar").one("progress").attributes["value"] == "0.3250"
    assert page.one(role="status").text == (
        "13 of 40 configurations, 2 running, 1 of them checked for their numbers. "
        "Best so far: 1.50× in the geometric mean. About 1 min 35 s left."
    )
    assert page.all("table")[0].table() == [
        ["Shape", "Default, cycles", "Best, cycles", "Speed-up"],
        ["b=5 s2=2048", "300,000", "200,000", "1.50×"],
        ["b=6 s2=2048", "9", "–", "–"],
    ]
    assert page.all("table")[1].table()[1:] == [["ok", "12"], ["rejected", "1"]]
    assert page.one(**{"data-events": f"/tune/{job}/events"})
    assert page.one("noscript").one("meta").attributes["http-equiv"] == "refresh"
    names = [element.attributes["data-live"] for element in page.all() if "data-live" in element.attributes]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("state", [JobState.DONE, JobState.FAILED, JobState.CANCELLED])
def test_job_that_ended_is_still(
    filled: tuple[Store, dict[JobState, int]], shared: TestClient, state: JobState
) -> None:
    page = get(shared, f"/jobs/{filled[1][state]}")
    assert page.one("h1").text.endswith(state)
    assert not page.all("script")
    assert not page.all("noscript")
    reason = "" if state is JobState.DONE else f"{state}: {HOSTILE}"
    assert page.one(**{"data-live": "reason"}).text == reason


def test_queued_job_lists_its_shapes(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    page = get(shared, f"/jobs/{filled[1][JobState.QUEUED]}")
    assert page.one("table").table()[1] == ["b=7 s2=2048", "–", "–", "–"]
    assert "Waits for a worker" in page.one(role="status").text
    assert facts(page)["Priority"] == "3"


# Shapes.


def test_tuned_shape(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    (tuned,) = filled[0].tuned(None, Workload(SHOWN))
    page = get(shared, f"/shape?{shape_query(SHOWN)}")
    told = facts(page)
    assert told["Configuration"] == tuned.measurement.config.digest
    assert told["Provenance"] == "exact: tuned for this very shape"
    assert told["Cost"] == f"{tuned.cost:,.0f} cycles"
    assert told["Default's cost"] == f"{tuned.default_cost:,.0f} cycles"
    assert told["Speed-up"] == f"{tuned.speedup:.2f}×"
    assert "max diff 0.0004" in told["Verified"]
    assert ENVIRONMENT.kernel_digest[:8] in told["Environment"]


def test_changed_fields_are_marked(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    (tuned,) = filled[0].tuned(None, Workload(SHOWN))
    before, after = tuned.default.config.to_json(), tuned.measurement.config.to_json()
    table = get(shared, f"/shape?{shape_query(SHOWN)}").one(class_="fields-table")
    rows = table.table()[1:]
    assert [row[0].partition(" ")[0] for row in rows] == list(FIELD_NAMES)
    for (name, default, served), row in zip(rows, table.all("tr")[1:], strict=True):
        field = name.partition(" ")[0]
        assert ("changed" in name, "changed" in row.attributes.get("class", "")) == (before[field] != after[field],) * 2
        assert default == json.dumps(before[field]) + (" (automatic)" if before[field] == {} else "")
        assert served == json.dumps(after[field]) + (" (automatic)" if after[field] == {} else "")


def test_history_and_measurements(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    page = get(shared, f"/shape?{shape_query(SHOWN)}")
    rows = filled[0].measurements(filled[0].environment_id(ENVIRONMENT), workload=Workload(SHOWN))
    plot = page.one(class_="plot")
    assert len(plot.all("circle")) == sum(row.cost is not None for row in rows)
    assert len(plot.all(class_="fail")) == sum(row.cost is None for row in rows)
    assert plot.one("desc").text.startswith(f"{len(rows)} measurements")
    table = next(table for table in page.all("table") if "Message" in table.text).table()[1:]
    assert [int(row[0]) for row in table] == [row.id for row in rows[::-1][: shape_module.MOST_LISTED]]
    for told, row in zip(table, rows[::-1], strict=False):
        assert told[1] == row.kind
        assert told[2] == ("" if row.cost is None else f"{row.cost:,.0f}")
    assert {row[7] for row in table if row[7]} >= {"UB is full: 262144 of 253952 bytes; second line", "signal 11"}


def test_hostile_messages_are_text(shared: TestClient) -> None:
    page = get(shared, f"/shape?{shape_query(SHOWN)}")
    assert any(cell.text == FAILURES[0][1] for cell in page.all("td"))
    assert not page.all("script")
    assert {image.attributes["src"].partition("?")[0] for image in page.all("img")} == {"/shape/lanes.png"}


def test_importance_of_made_up_costs(shared: TestClient) -> None:
    rows = get(shared, f"/shape?{shape_query(SHOWN)}").one(class_="shares").table()[1:]
    assert {row[0] for row in rows[:3]} & {"s2_tile", "vec_nbuffer"}
    assert sum(float(row[1].removesuffix(" %")) for row in rows) == pytest.approx(100, abs=2)
    few = get(shared, f"/shape?{shape_query(TUNED[0])}")
    assert "It takes 20 measured configurations to tell, and there are 6." in few.one("main").text


def test_shape_never_measured(shared: TestClient) -> None:
    shape = PfaShape(3, 777, qd=64)
    page = get(shared, f"/shape?{shape_query(shape)}")
    assert facts(page)["Provenance"].startswith("default")
    assert facts(page)["Configuration"] == canonical(default_config(shape), shape.family).digest
    assert "The default itself is served" in page.one("main").text


def test_commands_tune_the_shape(store: Store) -> None:
    shape = PfaShape(3, 777, s1=2, nkv=4, qd=64, block_size=256)
    with client_of(store) as client:
        lines = get(client, f"/shape?{shape_query(shape)}&soc=950DT").one("pre").children[0]
        assert isinstance(lines, Element)
        command, curl = "".join(str(child) for child in lines.children).splitlines()
        assert command == "pfatune tune --b 3 --s2 777 --s1 2 --nkv 4 --qd 64 --block-size 256 --soc 950DT"
        words = shlex.split(curl)
        assert (words[0], words[2]) == ("curl", "--json")
        job = client.post(words[1], json=json.loads(words[3])).json()
    assert job["soc"] == "950DT"
    assert job["workloads"] == [{"shape": shape.to_json(), "actual_seq": None}]


@pytest.mark.parametrize(("asked", "provenance"), [(PfaShape(15, 8000), "bucket"), (PfaShape(20, 10000), "nearest")])
def test_evidence_of_another_shape(shared: TestClient, asked: PfaShape, provenance: str) -> None:
    page = get(shared, f"/shape?{shape_query(asked)}")
    told = facts(page)
    assert told["Provenance"].startswith(f"{provenance}: ")
    assert told["Measured at"] == "b=16 s2=8192"
    assert "To have this shape tuned itself" in page.one("main").text
    assert "Nothing was measured at this shape" in page.one("main").text


def test_shape_tuned_with_shorter_sequences(store: Store) -> None:
    workload = Workload(PfaShape(2, 1024), (100, 1024))
    promote(store, workload)
    with client_of(store) as client:
        page = get(client, "/shape?b=2&s2=1024")
    assert "shorter sequences" in facts(page)["Provenance"]
    assert facts(page)["Measured at"] == "b=2 s2=1024, sequences of 100 to 1024 tokens"
    assert len(page.one(class_="plot").all("circle")) == 2


def test_measurements_of_other_kernels_are_marked(store: Store) -> None:
    older = replace(ENVIRONMENT, kernel_digest="0" * 16)
    promote(store, Workload(PfaShape(2, 1024)), environment=older)
    with client_of(store) as client:
        page = get(client, "/shape?b=2&s2=1024")
        assert facts(page)["Provenance"].startswith("default")
        assert "another version of the kernel" in page.one("main").text
        promote(store, Workload(PfaShape(2, 1024)))
        page = get(client, "/shape?b=2&s2=1024")
        assert "another version of the kernel" not in page.one("main").text
        tabs = page.one("nav", **{"aria-label": "Environments"}).all("a")
        assert len(tabs) == 2
        assert "another version" in get(client, tabs[1].attributes["href"]).one("main").text


def test_wrong_numbers_are_hollow_and_not_the_best(store: Store) -> None:
    shape = PfaShape(2, 1024)
    ids = page_tools.add_history(store, shape, 5)
    rows = [found[1] for one in ids if (found := store.measurement(one))]
    fastest = min(rows, key=lambda row: row.cost or 0)
    store.add(1, [Measurement(Workload(shape), fastest.config, Kind.WRONG_RESULT, None, message="max diff 3")])
    with client_of(store) as client:
        page = get(client, "/shape?b=2&s2=1024")
    plot = page.one(class_="plot")
    assert [circle.one("title").text for circle in plot.all(class_="wrong")] == [
        f"#{rows.index(fastest) + 1}: {fastest.cost:,.0f} cycles, configuration {fastest.config.digest}, "
        "its numbers are wrong"
    ]
    assert f"best {fastest.cost:,.0f}" not in plot.one("desc").text


def test_long_history_is_cut(shared: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_module, "MOST_ROWS", 25)
    page = get(shared, f"/shape?{shape_query(SHOWN)}")
    assert "The last 25 measurements:" in page.one("main").text
    assert page.one(class_="plot").one("desc").text.startswith("25 measurements")


def test_illegal_default_is_told(shared: TestClient) -> None:
    page = get(shared, "/shape?b=1&s2=8192&block_size=96")
    assert "The default configuration is illegal here" in page.one("main").text


# Swim lanes.


def lanes_path(page: Element) -> str:
    return page.one("img").attributes["src"]


@pytest.mark.slow
def test_swim_lanes(shared: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lanes_path(get(shared, f"/shape?{shape_query(SHOWN)}"))
    first = shared.get(path)
    assert (first.status_code, first.headers["content-type"]) == (200, "image/png")
    assert first.content.startswith(b"\x89PNG")
    monkeypatch.setattr(lanes_module, "_draw", None)
    assert shared.get(path).content == first.content


def test_swim_lanes_that_cannot_be_drawn(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    tuned = filled[0].tuned(None, Workload(SHOWN))[0].measurement.id
    other = filled[0].tuned(None, Workload(TUNED[0]))[0].measurement.id
    check_problem(shared.get(f"/shape/lanes.png?default={tuned}&tuned={other}"), 404)
    check_problem(shared.get(f"/shape/lanes.png?default=999999&tuned={tuned}"), 404)
    check_problem(shared.get("/shape/lanes.png?default=0&tuned=1"), 422)
    page = get(shared, f"/shape?{shape_query(TUNED[0])}")
    assert not page.all("img")
    assert "pfatune trace --b 1 --s2 2048 --out lanes" in page.one("main").text


def test_swim_lanes_of_two_shapes_are_refused(store: Store) -> None:
    ids = [promote(store, Workload(PfaShape(b, 1024))) for b in (1, 2)]
    for one in ids:
        store.traces.add(one, page_tools.swimlane(1000).to_json())
    with client_of(store) as client:
        problem = check_problem(client.get(f"/shape/lanes.png?default={ids[0]}&tuned={ids[1]}"), 422)
        assert "another shape" in problem["detail"]
        assert client.get(f"/shape/lanes.png?default={ids[0]}&tuned={ids[0]}").status_code == 200


# The grid over HTTP.


def test_grid_of_a_family(filled: tuple[Store, dict[JobState, int]], shared: TestClient) -> None:
    table = get(shared, "/grid?family=1,12,2,128,128").one(class_="grid").table()
    assert table[0] == ["b \\ s2", "1024", "4096", "8192"]
    assert [row[0] for row in table[1:]] == ["1", "16", "32"]
    cells = {(int(row[0]), int(s2)): cell for row in table[1:] for s2, cell in zip(table[0][1:], row[1:], strict=True)}
    told = {size: cell for size, cell in cells.items() if cell}
    assert told == {
        (shape.b, shape.s2): f"{filled[0].tuned(None, Workload(shape))[0].speedup:.2f}" for shape in TUNED[6:]
    }


def test_grid_says_what_is_not_tuned(shared: TestClient) -> None:
    page = get(shared, "/grid?family=9,12,1,128,128")
    assert "Nothing of the family s1=9 nq=12 nkv=1 qd=128 block_size=128 is tuned" in page.one("main").text
    assert len(page.all("option")) == 3


@pytest.mark.slow
def test_large_grid_is_paged_and_small(store: Store) -> None:
    app = create_app(store)
    config = canonical(default_config(PfaShape(1, 128)), PfaShape(1, 128).family)
    shapes = [PfaShape(b, 128 * n) for b in range(1, 64) for n in range(1, 64)]
    entries = [(shape, Entry(config, 100.0, 100.0 + shape.b, 1, "2026-01-02T03:04:05+00:00")) for shape in shapes]
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.pfatune.view.take([News(1, ENVIRONMENT, 1, entries)])
        waiting, pages = ["/grid"], set()
        seen: list[str] = []
        while waiting:
            path = waiting.pop()
            response = client.get(path, headers=HTML)
            assert len(response.content) < 400_000
            page = read(response.text)
            grid = page.one(class_="grid")
            if grid.text in pages:
                continue
            pages.add(grid.text)
            assert "at most 30 on a page" in page.one("main").text
            seen += [link.attributes["href"] for link in grid.all("a")]
            waiting += [link.attributes["href"] for pager in page.all(class_="pager") for link in pager.all("a")]
    assert sorted(seen) == sorted(f"/shape?{shape_query(shape)}" for shape in shapes)


# What is wrong is told.


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/shape", 422),
        ("/shape?b=1", 422),
        ("/shape?b=0&s2=1", 422),
        ("/shape?b=x&s2=1", 422),
        ("/shape?b=1&s2=1&s2=2&colour=red", 422),
        ("/shape?b=1&s2=128&nq=7&nkv=2", 422),
        ("/shape?b=1&s2=128&soc=910B", 422),
        ("/shape?b=1&s2=128&environment=zz", 422),
        ("/shape?b=1&s2=128&environment=0123456789abcdef", 404),
        (f"/shape?b={'9' * 50}&s2=128", 422),
        ("/shape?b=%3Cscript%3Ealert(1)%3C/script%3E&s2=128", 422),
        ("/shape?b=1&s2=128&%22%3E%3Cscript%3E=1", 422),
        ("/grid?environment=0123456789abcdef", 404),
        ("/grid?environment=%00", 422),
        ("/grid?family=1,2,3", 422),
        ("/grid?family=%3Cb%3E", 422),
        ("/grid?family=0,0,0,0,0", 422),
        ("/grid?b_from=-1", 422),
        ("/jobs?state=late", 422),
        ("/jobs?before=0", 422),
        ("/jobs/0", 422),
        ("/jobs/99999999999999999999", 422),
        ("/jobs/12345", 404),
        ("/static/../routes.py", 404),
        ("/static/base.html", 404),
    ],
)
def test_problems_are_told_to_people_and_to_programs(shared: TestClient, path: str, status: int) -> None:
    problem = check_problem(shared.get(path), status)
    if path.startswith("/static/.."):  # resolved by the client, and no page then
        return
    page = get(shared, path, status)
    assert " ".join(problem["detail"].split()) in page.one("main").text
    assert not page.all("script")


@pytest.mark.parametrize(
    ("name", "kind"), [("pages.css", "text/css"), ("live.js", "text/javascript"), ("icon.svg", "image/svg+xml")]
)
def test_static_files(shared: TestClient, name: str, kind: str) -> None:
    response = shared.get(f"/static/{name}")
    assert response.headers["content-type"].partition(";")[0] == kind
    assert len(response.content) < 10_000
    assert not re.search(rb"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", response.content)
    again = shared.get(f"/static/{name}", headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_entries_are_of_the_tuned_configuration(store: Store) -> None:
    better: KernelConfig = replace(
        canonical(default_config(PfaShape(2, 1024)), PfaShape(2, 1024).family), stitch_function_max_num=64
    )
    promote(store, Workload(PfaShape(2, 1024)), better, cost=500.0, default_cost=4000.0)
    with client_of(store) as client:
        cell = get(client, "/grid").one(class_="grid").one("td")
    assert cell.attributes["class"] == "c23"
    title = cell.one("a").attributes["title"]
    assert title.startswith(
        f"b=2 s2=1024: 500 cycles; default 4,000 cycles; configuration {better.digest}; verified 20"
    )
