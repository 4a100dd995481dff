"""The pages in a real browser: nothing is refused or fetched from elsewhere, and progress is live."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import page_tools
import pytest
from page_tools import FAILURES, SHOWN, TUNED
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from pfatune.api.pages.words import shape_query
from pfatune.db import JobState, Lease, Store
from pfatune.kernel.shapes import PfaShape, Workload

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
PHONE, DESK = 390, 1280

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM.exists() and DRIVER.exists()),
        reason="no browser: install Debian's chromium and chromium-driver",
    ),
]


class Browser:
    """A headless Chromium, and what it complained of or asked for since the last look."""

    def __init__(self, folder: Path) -> None:
        options = ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options=options, service=Service(str(DRIVER)))

    def width(self, pixels: int) -> None:
        metrics = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": pixels < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scripts(self, enabled: bool) -> None:
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not enabled})

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The URLs asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]

    def text(self, selector: str) -> str:
        # In one step: what is live may be replaced between two.
        found: str = self.driver.execute_script("return document.querySelector(arguments[0]).innerText", selector)
        return " ".join(found.split())

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def wait(self, holds: Callable[[], bool], seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.text("main")
            time.sleep(0.05)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("chromium"))
    yield made
    made.driver.quit()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str, dict[JobState, int]]]:
    with Store.open(tmp_path_factory.mktemp("browser") / "a.db") as store:
        jobs = page_tools.fill(store)
        with page_tools.listening(store) as url:
            yield store, url, jobs


def paths(jobs: dict[JobState, int]) -> list[str]:
    return [
        "/",
        "/jobs",
        "/jobs?state=failed",
        *(f"/jobs/{job}" for job in jobs.values()),
        "/grid",
        "/grid?family=1,12,2,128,128",
        f"/shape?{shape_query(SHOWN)}",
        f"/shape?{shape_query(TUNED[0])}",
        "/shape?b=3&s2=777&qd=64",
    ]


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_pages_fit_and_are_quiet(browser: Browser, served: tuple[Store, str, dict[JobState, int]], width: int) -> None:
    _, url, jobs = served
    browser.width(width)
    browser.driver.get("about:blank")
    browser.complaints()
    browser.requests()
    for path in paths(jobs):
        browser.driver.get(url + path)
        assert browser.run("document.documentElement.scrollWidth") <= width, path
        assert browser.run("document.styleSheets[0].cssRules.length") > 50
        assert browser.complaints() == [], path
        requests = [one for one in browser.requests() if not one.startswith(("about:", "data:"))]
        assert requests
        assert [one for one in requests if not one.startswith(f"{url}/")] == []


def test_errors_are_pages(browser: Browser, served: tuple[Store, str, dict[JobState, int]]) -> None:
    browser.width(PHONE)
    for path, text in (
        ("/jobs/99999", "job 99999 is not here"),
        ("/shape?b=0&s2=1", "b is 0"),
        ("/grid?x=1", "x is not"),
    ):
        browser.driver.get(served[1] + path)
        assert text in browser.text("main")
        assert browser.run("document.documentElement.scrollWidth") <= PHONE


def test_numbers_of_the_grid(browser: Browser, served: tuple[Store, str, dict[JobState, int]]) -> None:
    store, url, _ = served
    browser.width(DESK)
    browser.driver.get(f"{url}/grid?family=1,12,1,128,128")
    links = browser.driver.find_elements(By.CSS_SELECTOR, ".grid td a")
    told = {link.get_attribute("href"): link.text for link in links}
    assert told == {
        f"{url}/shape?{shape_query(shape)}": f"{store.tuned(None, Workload(shape))[0].speedup:.2f}"
        for shape in TUNED[:6]
    }
    colours = browser.run(
        "[...document.querySelectorAll('.legend td')].map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(colours)) == 24
    cell = browser.run("getComputedStyle(document.querySelector('.grid td a').parentElement).backgroundColor")
    assert cell in colours
    links[0].click()
    assert "tuned for this very shape" in browser.text("main")


def test_hostile_text_is_text(browser: Browser, served: tuple[Store, str, dict[JobState, int]]) -> None:
    _, url, jobs = served
    browser.driver.get(f"{url}/shape?{shape_query(SHOWN)}")
    assert FAILURES[0][1] in browser.text("main")
    assert "owned" not in browser.driver.title
    browser.driver.get(f"{url}/jobs/{jobs[JobState.FAILED]}")
    assert "<script>" in browser.text(".note")
    assert "owned" not in browser.driver.title
    assert browser.run("document.querySelectorAll('main script, main img').length") == 0


def test_swim_lanes_are_drawn(browser: Browser, served: tuple[Store, str, dict[JobState, int]]) -> None:
    browser.width(DESK)
    browser.driver.get(f"{served[1]}/shape?{shape_query(SHOWN)}")
    browser.run("document.querySelector('img').scrollIntoView()")
    browser.wait(lambda: bool(browser.run("document.querySelector('img').naturalWidth > 1000")))


def test_plot_is_readable_on_a_phone(browser: Browser, served: tuple[Store, str, dict[JobState, int]]) -> None:
    browser.width(PHONE)
    browser.driver.get(f"{served[1]}/shape?{shape_query(SHOWN)}")
    assert browser.run("getComputedStyle(document.querySelector('.plot text')).fontSize") == "12px"
    boxes = browser.run(
        "[...document.querySelectorAll('.plot circle, .plot text')].map(one => one.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) > 50
    assert all(box["left"] >= 0 and box["right"] <= PHONE for box in boxes)


def watched_job(store: Store, b: int) -> tuple[int, Lease, PfaShape]:
    shape = PfaShape(b, 4096)
    store.jobs.submit(page_tools.request(shape, priority=100))
    job, lease = page_tools.claim(store)
    store.jobs.report(lease, page_tools.progress(4, (shape, None, None)))
    return job.id, lease, shape


def test_progress_is_live(browser: Browser, served: tuple[Store, str, dict[JobState, int]]) -> None:
    store, url, _ = served
    job, lease, shape = watched_job(store, 9)
    browser.width(DESK)
    browser.driver.get(f"{url}/jobs/{job}")
    browser.wait(lambda: browser.text("#connection") == "live")
    browser.complaints()
    assert browser.run("document.querySelector('.wide-bar progress').value") == 0.1
    browser.run("(document.querySelector('.scroll a').focus(), window.kept = document.querySelector('h1'), 1)")

    store.jobs.report(lease, page_tools.progress(30, (shape, 4_000_000.0, 1_000_000.0), speedup=4.0))
    browser.wait(lambda: "30 of 40 configurations" in browser.text("[role=status]"))
    assert browser.run("document.querySelector('.wide-bar progress').value") == 0.75
    assert browser.text("tbody tr") == "b=9 s2=4096 4,000,000 1,000,000 4.00×"
    # Only what changed was put in place: the focus is where it was.
    assert browser.run("document.activeElement.getAttribute('href')") == "/shape?b=9&s2=4096&soc=950PR"

    reason = "the end <b>of it</b>"
    store.jobs.finish(lease, JobState.FAILED, reason=reason)
    browser.wait(lambda: browser.text("[data-live=state]") == "failed")
    assert browser.text(".note") == reason
    assert browser.text("#connection") == ""
    assert "cancel" not in browser.text("main")
    assert browser.driver.title.startswith(f"Job {job}, failed")
    assert browser.run("window.kept === document.querySelector('h1')")  # the page was never loaded again
    assert browser.complaints() == []


def test_job_page_without_scripts(browser: Browser, served: tuple[Store, str, dict[JobState, int]]) -> None:
    store, url, _ = served
    job, lease, shape = watched_job(store, 10)
    browser.scripts(False)
    try:
        browser.driver.get(f"{url}/jobs/{job}")
        assert "4 of 40 configurations" in browser.text("[role=status]")
        store.jobs.report(lease, page_tools.progress(20, (shape, None, None)))
        browser.driver.find_element(By.LINK_TEXT, "Reload").click()
        browser.wait(lambda: "20 of 40 configurations" in browser.text("[role=status]"))
    finally:
        browser.scripts(True)
        store.jobs.finish(lease, JobState.DONE)
