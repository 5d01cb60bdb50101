"""The HTML report in a real browser: no console error, no request, no sideways scrolling, and the answers first."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dicast.app.reports.html.page import write_report
from dicast.app.reports.statistics import compute, keep
from tests.reports import kinds
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
        assert not page.locator(".opinion").last.evaluate("node => node.checkVisibility()"), "folded"
        assert (said, asked) == ([], [out.as_uri()])
        page.close()
    assert len(backgrounds) == 2


AXE = (Path(__file__).parents[1] / "page" / "axe" / "axe.min.js").read_text(encoding="utf-8")
ON_SCREEN = """height => [...document.querySelectorAll("header *, main *")].filter((node) =>
    !node.children.length || node.tagName === "P").filter((node) => {
        const box = node.getBoundingClientRect();
        return node.checkVisibility() && box.height > 0 && box.bottom <= height; }
    ).map((node) => node.textContent).join("\\n")"""
MOST_PAGES = 10


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_the_first_screenful_answers_what_readers_ask(tmp_path: Path, browser: Any, kind: str) -> None:
    folder, report = kinds.KINDS[kind](tmp_path)
    out = write_report(folder, report, tmp_path / "report.html")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(out.as_uri())
    seen = page.evaluate(ON_SCREEN, 900)
    of = report.conclusions
    assert of is not None
    asked = {
        "which is best": of.best[0], "whom to trust": of.trust[0], "what failed": of.failures[0],
        "what now": of.actions[0].text, "how it ended": of.badge,
    }  # fmt: skip
    for question, answer in asked.items():
        assert answer in seen, question
    if kind != "nothing":
        assert re.search("in (people|the judges)'s? opinion", seen), "whose opinion"
    if kind in ("systems", "pairs", "rankings", "labels"):
        assert re.search(r"\(\S+ to \S+\)", seen), "how sure"
        assert page.locator(".multi svg").first.bounding_box()["y"] < 900, "a chart is on the first screen"
    page.close()


@pytest.mark.parametrize("kind", ["systems", "rankings", "nothing"])
def test_a_report_can_be_read_by_everybody_on_every_screen(tmp_path: Path, browser: Any, kind: str) -> None:
    folder, report = kinds.KINDS[kind](tmp_path)
    out = write_report(folder, report, tmp_path / "report.html")
    for scheme, width in (("light", 1440), ("dark", 390)):
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
        page.goto(out.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        page.evaluate(f"() => {{ {AXE}; window.axe = axe; }}")
        found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        assert [(of["id"], [node["html"] for node in of["nodes"]]) for of in found["violations"]] == [], scheme
        page.evaluate("document.querySelectorAll('details').forEach(folded => folded.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{width}, all of it unfolded"
        page.close()


def test_four_systems_in_four_dimensions_fit_on_few_sheets(tmp_path: Path, browser: Any) -> None:
    folder, report = kinds.systems(tmp_path)
    page = browser.new_page()
    page.goto(write_report(folder, report, tmp_path / "report.html").as_uri())
    pages = re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))
    assert 1 <= len(pages) <= MOST_PAGES
    page.close()


def test_a_reader_can_check_a_judge_by_what_was_judged(tmp_path: Path) -> None:
    folder, report = kinds.systems(tmp_path)
    text = write_report(folder, report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Where is my refund? (item-" in text and "Your refund of 40 euros was sent on Monday" in text
