"""Debian's Chromium, driven by Playwright; every page is watched for errors and for requests to other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dicast.app.application import Dicast
from tests.server.conftest import module_url, second_store
from tests.server.serving import installation, served

__all__ = ["module_url", "second_store"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")  # no longer: while it is open, a loop runs in this thread, and no other can
def browser() -> Iterator[object]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()


class Watched:
    """A browser's page at an address, and what went wrong on it."""

    def __init__(self, page, address: str) -> None:
        self.page, self.address = page, address
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.expected: list[str] = []
        """Parts of messages that a test provokes."""
        page.set_default_timeout(60_000)
        page.on("console", lambda told: self.errors.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._requested)

    def _requested(self, request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.address).netloc:
            self.foreign.append(request.url)

    def go(self, path: str = "", wait: str = "main h1") -> None:
        """To a view; until its heading is there."""
        self.page.goto(f"{self.address}/{path}")
        self.page.wait_for_selector(wait)

    def axe(self) -> list[str]:
        """Serious findings."""
        self.page.evaluate(f"() => {{ {AXE}; window.axe = axe; }}") if not self.page.evaluate(
            "'axe' in window"
        ) else None
        found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:300]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"][:3]
        ]

    def check(self) -> None:
        """No error, no request to elsewhere, and nothing of what was shown has run."""
        assert [e for e in self.errors if not any(part in e for part in self.expected)] == []
        assert self.foreign == []
        assert self.page.evaluate("window.stolen") is None


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Watched]]:
    """Opens a page at an address; all are checked at the end of the test."""
    contexts, pages = [], []

    def opened(address: str, **options) -> Watched:
        context = browser.new_context(**options)
        contexts.append(context)
        pages.append(Watched(context.new_page(), address))
        return pages[-1]

    yield opened
    try:
        for each in pages:
            each.check()
    finally:
        for context in contexts:
            context.close()


@pytest.fixture(scope="module")
def open_installation(tmp_path_factory: pytest.TempPathFactory, module_url: str) -> Iterator[tuple[Dicast, str]]:
    """One that asks for no tokens."""
    with _at(tmp_path_factory.mktemp("page"), module_url, DICAST_REQUIRE_AUTH="false") as found:
        yield found


@contextmanager
def _at(folder: Path, url: str, **settings: str) -> Iterator[tuple[Dicast, str]]:
    dicast = installation(folder, url, **settings)
    with served(dicast) as address:
        yield dicast, address
