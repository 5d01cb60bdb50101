"""The HTML report in a real browser: no console error, no request, no sideways scrolling; printed whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dicast.app.reports.html.page import write_report
from dicast.app.reports.statistics import compute, keep
from tests.reports.test_assessing import finished

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
WIDTHS = (360, 1024, 3840)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as made:
        found = made.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def test_it_opens_without_an_error_or_a_request_at_all_widths_and_in_both_colours(tmp_path: Path, browser: Any) -> None:
    folder, report = finished(tmp_path)
    out = write_report(folder, keep(folder, report, compute(folder, report)), tmp_path / "report.html")
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(out.as_uri())
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        bar = page.locator("svg .fill-one").first
        assert bar.evaluate("node => getComputedStyle(node).fill") not in ("rgb(0, 0, 0)", "none"), "plots have colours"
        assert page.locator("details:not([open])").count() > 5
        page.emulate_media(media="print")
        assert page.locator(".opinion").last.evaluate("node => node.getBoundingClientRect().height") > 0
        assert (said, asked) == ([], [out.as_uri()])
        page.close()
    assert len(backgrounds) == 2
