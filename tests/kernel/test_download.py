"""Downloads: they end in time, take what they should and follow where they may."""

from __future__ import annotations

import ssl
import time

import pytest
from service_stand_in import GOOD, MISBEHAVIOUR, Behaviour, StandIn, dead_url, go_on_for_ever, redirect, send, serve

from pfatune.kernel import download
from pfatune.kernel.download import Download, DownloadError, check_url, get

CAP = 1 << 20


@pytest.fixture(autouse=True)
def _short_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TOTAL_TIMEOUTS", 3)


def test_a_body_comes_with_its_tag_and_only_once() -> None:
    with StandIn(serve(GOOD)) as service:
        first = get(f"{service.url}/configs?soc=950PR", max_bytes=CAP)
        assert first.body == GOOD
        assert get(f"{service.url}/configs?soc=950PR", tag=first.tag, max_bytes=CAP) == Download(None, first.tag)
    assert service.asked == ["/configs?soc=950PR"] * 2
    assert service.answered == [200, 304]


@pytest.mark.slow
@pytest.mark.parametrize("behave", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_a_download_ends_in_time_whatever_the_other_side_does(behave: Behaviour) -> None:
    with StandIn(behave) as service:
        start = time.monotonic()
        received, said = b"", ""
        try:
            received = get(f"{service.url}/configs", timeout=0.2, max_bytes=CAP).body or b""
        except DownloadError as error:
            said = str(error)
        assert received != GOOD
        assert "\n" not in said
        assert len(said) < 500
        assert time.monotonic() - start < 10


def test_no_more_is_received_than_the_limit() -> None:
    with StandIn(send(b"x" * 1001)) as service:
        with pytest.raises(DownloadError, match="more than 1000 bytes"):
            get(service.url, max_bytes=1000)
        assert get(service.url, max_bytes=1001).body == b"x" * 1001
    with StandIn(go_on_for_ever) as service, pytest.raises(DownloadError, match=f"more than {CAP} bytes"):
        get(service.url, max_bytes=CAP)


def test_redirects_are_followed_to_http_only_and_not_for_ever() -> None:
    with StandIn(serve(GOOD)) as service, StandIn(redirect(f"{service.url}/moved")) as old:
        assert get(f"{old.url}/configs", max_bytes=CAP).body == GOOD
        assert service.asked == ["/moved"]
    with StandIn(redirect("/again")) as loop:
        with pytest.raises(DownloadError, match="redirects more than 5 times"):
            get(loop.url, max_bytes=CAP)
        assert len(loop.asked) == 6
    with (
        StandIn(redirect("file:///etc/hostname")) as wrong,
        pytest.raises(DownloadError, match="no URL of a service"),
    ):
        get(wrong.url, max_bytes=CAP)


def test_a_redirect_does_not_leave_https() -> None:
    with pytest.raises(DownloadError, match="away from https"):
        download._redirected("https://127.0.0.1/configs", "http://127.0.0.1/configs")
    assert download._redirected("https://127.0.0.1/configs", "/other") == "https://127.0.0.1/other"


def test_a_server_without_tls_is_no_https() -> None:
    with StandIn(serve(GOOD)) as service, pytest.raises(DownloadError, match=ssl.SSLError.__name__):
        get(service.url.replace("http:", "https:"), timeout=1, max_bytes=CAP)


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(DownloadError, match="refused"):
        get(dead_url(), max_bytes=CAP)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http:///configs",
        "http://host:0",
        "http://host:99999",
        "http://host:port",
        "http://[::1",
        "http://ho st",
        "http://host/\n",
        "http://höst",
        "http://\uff0f",
    ],
)
def test_a_url_that_cannot_be_asked_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        check_url(url)


@pytest.mark.parametrize("host", ["host", "", "[::1", "höst", "host:port"])
def test_a_password_in_a_url_is_refused_and_not_shown(host: str) -> None:
    with pytest.raises(ValueError, match="URL") as caught:
        check_url(f"http://user:secret@{host}")
    assert "secret" not in str(caught.value)
