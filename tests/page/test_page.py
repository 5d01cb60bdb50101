"""The page in a real browser: each flow, by eye's measure, by keyboard and for screen readers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.domain.price import Place
from dicast.app.domain.report import Report
from dicast.app.ledger.client import UnknownJob
from dicast.app.reports.blind import BlindRatings
from dicast.app.reports.folders import job_folder
from dicast.app.server import page
from tests.e2e.cluster import until
from tests.page import world
from tests.page.conftest import Watched
from tests.reports.kinds import KINDS, systems
from tests.server.serving import client, installation, served

if TYPE_CHECKING:
    from playwright.sync_api import Route

Open = Callable[..., Watched]
_names = itertools.count()


@pytest.fixture(scope="module")
def kinds(open_installation: tuple[Dicast, str]) -> dict[str, Report]:
    """A finished job of each of six kinds."""
    dicast, _ = open_installation
    reports = {kind: make(dicast.settings.results_dir)[1] for kind, make in KINDS.items()}
    for report in reports.values():
        world.registered(dicast, report)
    return reports


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_screenful_answers_what_one_came_for(
    made: tuple[Dicast, str], kinds: dict[str, Report], open_page: Open, kind: str
) -> None:
    """Which system, how sure, whom to trust, what failed, what now: in the words of the report."""
    report = kinds[kind]
    conclusions = report.conclusions
    assert conclusions is not None
    seen = open_page(made[1], viewport={"width": 1440, "height": 900})
    seen.go(f"#/jobs/{report.job_id}", wait=".verdict")
    seen.page.wait_for_timeout(200)
    screenful = seen.page.evaluate(
        """() => [...document.querySelectorAll("main h1, main p, main .badge")]
          .filter((each) => each.checkVisibility() && each.getBoundingClientRect().bottom <= innerHeight)
          .map((each) => each.innerText).join("\\n")"""
    )
    answers = {
        "which system, how sure": conclusions.best, "whom to trust": conclusions.trust,
        "what failed": conclusions.failures, "what now": [action.text for action in conclusions.actions],
        "health": [conclusions.badge],
    }  # fmt: skip
    for question, sentences in answers.items():
        assert sentences, question
        for sentence in sentences:
            assert sentence in screenful, (question, sentence)
    assert seen.axe() == []


def test_two_runs_are_compared_with_their_texts(
    made: tuple[Dicast, str], kinds: dict[str, Report], open_page: Open
) -> None:
    """The page says first that one system alone has changed, then shows it, then the judges."""
    dicast, address = made
    before = kinds["systems"].job_id
    world.registered(dicast, systems(dicast.settings.results_dir, "support-bots-december", "claude-bot")[1])
    for scheme in ("light", "dark"):
        seen = open_page(address, color_scheme=scheme)
        seen.go("#/jobs/support-bots-december", wait=".verdict")
        seen.page.get_by_role("link", name="Compare with").click()
        seen.page.get_by_label("from").select_option(before)
        seen.page.wait_for_selector(".moved")
        headings = [each.inner_text() for each in seen.page.locator("main h1, main h2").all()]
        assert headings == ["What has changed", "Systems", "Judges", "What moved most"]
        assert seen.page.inner_text(".verdict .first").startswith("Only claude-bot changed: ")
        assert "claude-bot: −" in (seen.page.locator(".track:has(.leads)").first.get_attribute("aria-label") or "")
        assert "I am sorry for the delay." in seen.page.inner_text(".moved li >> nth=0")
        assert seen.axe() == [], scheme
    seen.go(f"#/jobs/support-bots-december/compare?from={kinds['labels'].job_id}")
    seen.expected.append("409")
    seen.page.wait_for_selector(".wrong")
    assert "no dimension in common" in seen.page.inner_text(".wrong")


@pytest.fixture(scope="module")
def made(open_installation: tuple[Dicast, str]) -> tuple[Dicast, str]:
    """With a job that has ended, a hostile one, and one that runs."""
    dicast, address = open_installation
    world.finished(dicast, "editorials", 60, failed=9)
    world.finished(dicast, "hostile", 4, hostile=True, failed=2)
    world.running(dicast, "nightly", 140)
    world.half_done(dicast, "half-done")
    world.ended(dicast, world.conversations("talks"))
    world.ended(dicast, world.pairs("pairs", 6))
    world.ended(dicast, world.with_criteria("cases"))
    with client(address) as http:
        for job in ("editorials", "hostile", "pairs"):
            assert http.post(f"/jobs/{job}/rating", json={"size": 4}).status_code == 201
    return dicast, address


VIEWS = (
    "#/jobs", "#/jobs/editorials", "#/jobs/nightly", "#/jobs/half-done",
    "#/jobs/editorials/items?sort=disagreement&descending=true",
    "#/jobs/editorials/item?id=essay-007", "#/pools", "#/pools/sim", "#/nodes", "#/submit", "#/rate/editorials",
    "#/rate/editorials?rater=eve", "#/jobs/hostile", "#/jobs/hostile/items", "#/jobs/hostile/item?id=item-2",
    "#/rate/hostile?rater=eve", "#/jobs/cases/item?id=case-0", "#/jobs/talks/item?id=talk-0",
    "#/jobs/pairs/item?id=pair-0", "#/rate/pairs?rater=eve",
)  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light"), (3840, "dark")])
def test_every_view_at_every_width(made: tuple[Dicast, str], open_page: Open, width: int, scheme: str) -> None:
    seen = open_page(made[1], viewport={"width": width, "height": 900}, color_scheme=scheme)
    for view in VIEWS:
        seen.go(view)
        assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (view, width)
        assert seen.axe() == [], (view, width, scheme)
    seen.go("#/nothing")
    assert seen.page.inner_text("h1") == "There is nothing here"


def test_it_is_small_and_soon_there(made: tuple[Dicast, str], open_page: Open) -> None:
    folder = Path(page.__file__).parent
    assert (
        sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".html", ".css", ".js", ".svg"))
        <= 300_000
    )
    seen = open_page(made[1])
    seen.go()

    def painted_ms() -> float:
        seen.go()
        return seen.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")

    until(lambda: painted_ms() <= 300, "it is painted within 0.3 s, in a moment that leaves it the machine")
    with client(made[1]) as http:
        policy = http.get("/").headers["content-security-policy"]
        assert "unsafe" not in policy and "script-src 'self'" in policy and "trusted-types 'none'" in policy
        mark = http.get("/page/main.js").headers["etag"]
        assert http.get("/page/main.js", headers={"If-None-Match": mark}).status_code == 304
        assert http.get("/page/__init__.py").status_code in (404, 422)


def test_hostile_texts_stay_texts(made: tuple[Dicast, str], open_page: Open) -> None:
    seen = open_page(made[1])
    for path in ("#/jobs/hostile", "#/jobs/hostile/items?argument=%3Cscript", "#/rate/hostile?rater=eve"):
        seen.go(path)
        assert "<script>" in seen.page.inner_text("main")
        assert seen.page.locator("main script, main img, main iframe").count() == 0
    seen.go("#/jobs/hostile/items")
    seen.page.get_by_role("link", name=world.HOSTILE_ID[:20]).click()
    seen.page.wait_for_selector(".text mark")
    assert "<script>" in seen.page.inner_text(".text mark >> nth=0")
    seen.go("#/jobs/hostile/item?id=item-1")
    seen.page.get_by_role("button", name=re.compile("Show all")).click()
    until(lambda: len(seen.page.text_content("main") or "") > 900_000, "a line of a megabyte is shown")
    assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_every_kind_of_item_is_shown(made: tuple[Dicast, str], open_page: Open) -> None:
    seen = open_page(made[1])
    seen.go("#/jobs/talks/item?id=talk-0", wait="main >> text=3. tool (calendar)")
    told = seen.page.inner_text("main")
    assert "1. user" in told and "3. tool (calendar)" in told and "Tools that it calls" in told and "<script>" in told
    seen.go("#/jobs/pairs/item?id=pair-0", wait=".sides .text")
    assert [each.inner_text() for each in seen.page.locator(".sides h2").all()] == ["Text A", "Text B"]
    seen.go("#/jobs/cases/item?id=case-0", wait=".answers .good")
    rows = seen.page.locator(".answers li").all()
    assert [row.locator("b").inner_text() for row in rows] == ["met", "no answer"]
    assert "(+5)" in rows[0].inner_text() and "<script>" in rows[0].inner_text() and "(-3)" in rows[1].inner_text()
    assert "40.0 to 100.0 % of its points, as one criterion has no answer" in seen.page.inner_text("main")
    drawn = seen.page.evaluate(
        """async () => {
          const { texts } = await import("/page/item.js");
          const item = {
            candidates: [{ id: "one", text: "first" }, { id: "two", text: "second" }],
            images: [
              { image: "data:image/png;base64,AAAA", description: "a <b>chart</b>" },
              { image: "https://elsewhere.example/x.png" },
            ],
          };
          document.querySelector("main").replaceChildren(...texts(item).flat(Infinity));
          return document.querySelector("main").innerText;
        }"""
    )
    for told in ("Candidate 2: two", "second", "image/png, 0 kB", "a <b>chart</b>", "https://elsewhere.example/x.png"):
        assert told in drawn, told
    assert seen.page.locator("main img").count() == 0, "an address is told, and never fetched"


def test_errors_are_shown_as_they_come(made: tuple[Dicast, str], open_page: Open) -> None:
    dicast, address = made
    name = f"failing-{next(_names)}"
    world.running(dicast, name, 30)
    seen = open_page(address)
    seen.go(f"#/jobs/{name}")
    seen.page.wait_for_selector("text=30 of 360")
    assert "Newest errors" not in seen.page.inner_text("main")
    world.failing(dicast, name, 40, page=0, told="no answer within 60 s")
    seen.page.wait_for_selector("text=no answer within 60 s")
    world.failing(dicast, name, 50, page=1, told=world.HOSTILE)
    seen.page.wait_for_selector("td:has-text('<script>window.stolen')")
    assert seen.axe() == []


def test_a_running_job_tells_means_failures_and_cost_so_far(made: tuple[Dicast, str], open_page: Open) -> None:
    """With what the intervals are of, and no winner."""
    seen = open_page(made[1], viewport={"width": 1440, "height": 900})
    seen.go("#/jobs/half-done")
    seen.page.wait_for_selector("h2:has-text('Systems so far')")
    told = seen.page.inner_text("main")
    assert "in the judges' opinion: means of the 30 of 60 items" in told and "however often one looks" in told
    assert "mean of all items of its system" in told
    assert "Cost so far: 1.20 USD spent, 0.10 USD reserved; besides, the unpriced calls of sim/free" in told
    row = seen.page.locator("table.judges tbody tr", has_text="copy editor")
    assert "1.20 USD" in row.inner_text() and "no answer in time" in seen.page.inner_text("table.judges")
    assert seen.page.locator(".chart .track").count() == 6 and seen.page.locator(".chart a, .chart .leads").count() == 0
    seen.go("#/jobs")
    listed = seen.page.get_by_role("row", name=re.compile("half-done")).inner_text()
    assert "1.20 USD" in listed and "and unpriced calls" in listed


def test_on_a_phone_jobs_are_cards_and_axes_are_in_scores(
    made: tuple[Dicast, str], kinds: dict[str, Report], open_page: Open
) -> None:
    """Nothing of a job has to be looked for beside the screen, and a dot is read on the scale of its value."""
    seen = open_page(made[1], viewport={"width": 390, "height": 844})
    seen.go("#/jobs")
    row = seen.page.get_by_role("row", name=re.compile("^half-done"))
    for label in ("Cost", "Failed", "Submitted"):
        box = row.locator(f"[data-label={label}]").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390, label
    assert seen.page.get_by_role("row", name=re.compile("^talks")).get_by_role("progressbar").count() == 0
    report = kinds["systems"]
    assert report.conclusions is not None
    seen.go(f"#/jobs/{report.job_id}", wait=".chart")
    assert "people's opinion, in scores" in seen.page.inner_text("main")
    labels = seen.page.locator(".chart").first.locator(".scale text").all_text_contents()
    assert labels == [label for _, label in report.conclusions.charts[0].ticks]


def test_the_list_tells_how_well_jobs_have_gone(made: tuple[Dicast, str], open_page: Open) -> None:
    dicast, address = made
    document = world.job("all-failed", 2)
    report = world.ended(dicast, document, failed=10**6, chance=1.0)
    assert report.scored == 0
    places = orjson.dumps([[Place("sim", "free").as_dict()]] * 3)
    dicast.store.hset(dicast.keys.at("job", "all-failed"), mapping={"b:0.0.20781:calls": 6, "places": places})
    seen = open_page(address)
    seen.go("#/jobs")
    for name, tone, label in (
        ("all-failed", "bad", "completed, all failed"), ("editorials", "partial", "completed, 9 failed"),
        ("talks", "completed", "completed"), ("nightly", "running", "running"),
    ):  # fmt: skip
        badge = seen.page.get_by_role("row", name=re.compile(f"^{name}")).locator(".badge")
        assert (badge.inner_text(), tone in badge.get_attribute("class").split()) == (label, True)
    assert "no price" in seen.page.get_by_role("row", name=re.compile("^all-failed")).inner_text()
    seen.go("#/jobs/all-failed", wait=".verdict")
    assert "Cost: not known, as nobody has told the price of sim/free." in seen.page.inner_text("main")


def test_a_job_is_followed_cancelled_and_resumed(made: tuple[Dicast, str], open_page: Open) -> None:
    dicast, address = made
    name = f"live-{next(_names)}"
    world.running(dicast, name, 30)
    seen = open_page(address)
    seen.go("#/jobs")
    row = seen.page.get_by_role("row", name=re.compile(name))
    assert "running" in row.inner_text()
    row.get_by_role("link").click()
    seen.page.wait_for_selector("text=30 of 360")
    world.progress(dicast, name, 90)
    seen.page.wait_for_selector("text=90 of 360")
    assert seen.page.get_by_role("progressbar").get_attribute("value") == "90"
    seen.page.get_by_role("button", name="Cancel").click()
    seen.page.get_by_role("button", name="Keep it").click()
    seen.page.get_by_role("button", name="Cancel").click()
    seen.page.get_by_role("button", name="Cancel the job").click()
    until(lambda: dicast.ledger.status(name).state != "running", "the job is cancelled")
    world.finished(dicast, f"{name}-ended", 3, failed=2)
    seen.go(f"#/jobs/{name}-ended")
    seen.page.get_by_role("button", name="Judge these again").click()
    until(lambda: dicast.ledger.status(f"{name}-ended").state == "submitted", "the job is resumed")


def test_a_job_is_submitted_or_refused_in_the_same_words(
    made: tuple[Dicast, str], open_page: Open, tmp_path: Path
) -> None:
    dicast, address = made
    seen = open_page(address)
    seen.expected = ["422", "404"]
    seen.go("#/submit")
    seen.page.fill("#text", "id: pasted\nagents: [{name: a}]\ndimensions: [{id: d}]\n")
    seen.page.get_by_role("button", name="Submit").click()
    told = seen.page.locator(".card.wrong").inner_text()
    with client(address) as http:
        lines = http.post("/jobs", content="id: pasted\nagents: [{name: a}]\ndimensions: [{id: d}]\n",
                          headers={"Content-Type": "application/yaml"}).json()["errors"]  # fmt: skip
    assert len(lines) == 2 and all(line in told for line in lines)
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "i", "text": "a text"}) + "\n")
    seen.page.set_input_files("#items", tmp_path / "items.jsonl")
    named = seen.page.wait_for_selector(".form code").inner_text()
    (tmp_path / "job.yaml").write_text(
        f"id: pasted\nagents: [{{name: a}}]\ndimensions: [{{id: d, instructions: '?'}}]\n{named}\n"
    )
    seen.page.set_input_files("#file", tmp_path / "job.yaml")
    until(lambda: named in seen.page.input_value("#text"), "the file is read")
    seen.page.get_by_role("button", name="Submit").click()
    seen.page.wait_for_selector("h1:has-text('pasted')")
    assert dicast.ledger.status("pasted").units == 1


def test_a_form_writes_the_job_and_shows_what_is_sent(
    made: tuple[Dicast, str], open_page: Open, tmp_path: Path
) -> None:
    """Its text is checked and can be submitted; what is changed by hand is kept."""
    dicast, address = made
    rows = "".join(f"{n},bot {n % 2},Refund {n} was sent,Where is it?\n" for n in range(6))
    (tmp_path / "answers.csv").write_text(f"id,system,answer,prompt\n{rows}")
    seen = open_page(address)
    seen.go("#/submit", wait=".entry")
    page = seen.page
    page.fill("#texts", 'One text.\n\nAnother: "quoted" #text.')
    assert 'text: "Another: \\"quoted\\" #text."' in page.input_value("#text")
    page.set_input_files("#items", tmp_path / "answers.csv")
    page.get_by_label("Judged text").select_option("answer")
    page.get_by_role("button", name="Add a judge").click()
    page.locator(".entry .name input").last.fill("yes: a # judge")
    page.get_by_text("From the library").click()
    page.get_by_label("Helpfulness").check()
    page.locator("summary", has_text="Ratings, limits").click()
    page.fill("#project", "desk")
    page.fill("#id", "by-form")
    page.fill("#max-calls", "1000")
    page.get_by_role("button", name="Check").click()
    told = page.locator("section[aria-label='The check']").inner_text()
    assert (
        "24 judgements in 24 calls" in told and "> Refund 0 was sent" in told and "Nothing has been submitted" in told
    )
    assert seen.axe() == []
    with pytest.raises(UnknownJob):
        dicast.ledger.status("by-form")
    page.fill("#text", page.input_value("#text").replace("Is every statement true?", "Is it true?"))
    assert "Changed by hand" in page.inner_text("#text-help")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_selector("h1:has-text('by-form')")
    job, _ = dicast.ledger.submitted_job("by-form")
    assert (job.project, job.groups, job.max_calls, len(job.agents)) == ("desk", ["system"], 1000, 2)
    assert [d.id for d in job.dimensions] == ["helpfulness", "correct"] and job.agents[1].name == "yes: a # judge"
    assert job.dimensions[1].instructions == "Is it true?"


def test_results_are_sorted_filtered_and_linked(made: tuple[Dicast, str], open_page: Open) -> None:
    seen = open_page(made[1])
    seen.go("#/jobs/editorials")
    seen.page.get_by_text("Means by judge and dimension").click()
    seen.page.locator(".heat").get_by_role("row", name=re.compile("^statistician")).get_by_role("link").first.click()
    seen.page.wait_for_selector("text=60 found")
    assert "judge=statistician" in seen.page.url and "sort=score" in seen.page.url
    seen.page.get_by_role("link", name="On", exact=True).click()
    seen.page.wait_for_selector("text=51 to 60 of 60")
    seen.page.select_option("#within", "search")
    seen.page.fill("#search", "ESSAY-00")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("text=10 found")
    address = seen.page.url
    seen.page.get_by_role("link", name="Spread").click()
    seen.page.wait_for_selector("th[aria-sort=descending]")
    again = open_page(made[1])
    again.page.goto(address)
    again.page.wait_for_selector("text=10 found")
    with again.page.expect_download() as found:
        again.go("#/jobs/editorials")
        again.page.get_by_text("Files").click()
        again.page.get_by_role("button", name="Opinions, JSONL").click()
    assert len(Path(found.value.path()).read_text().splitlines()) == 540


def test_items_have_facets_and_one_stands_beside_the_list(made: tuple[Dicast, str], open_page: Open) -> None:
    seen = open_page(made[1], viewport={"width": 1440, "height": 900})
    seen.go("#/jobs/editorials/items")
    seen.page.wait_for_selector(".excerpt:has-text('The council plans')")
    press(seen, "j", "j")
    assert seen.page.inner_text(".pane h2") == "essay-001"
    seen.page.wait_for_selector(".pane .opinions")
    seen.page.evaluate("scrollTo(0, 400)")
    press(seen, "Enter")
    seen.page.wait_for_selector("h1:has-text('essay-001')")
    press(seen, "j")
    seen.page.wait_for_selector("h1:has-text('essay-002')")
    seen.page.locator(".traces summary", has_text="Prompt").first.click()
    seen.page.wait_for_selector(".code:has-text('END OF MATERIAL')")
    press(seen, "Escape")
    seen.page.wait_for_selector(".pane h2:has-text('essay-001')")
    until(lambda: seen.page.evaluate("scrollY") > 300, "the list stands where it was")
    seen.page.get_by_role("button", name=re.compile("^failed")).click()
    seen.page.wait_for_selector(r"text=/^\d found of 60/")
    seen.page.fill("#search", "no such text")
    press(seen, "Enter")
    seen.page.wait_for_selector("text=No item is like that")
    seen.go("#/jobs/editorials/items?offset=5000")
    seen.page.wait_for_selector("text=51 to 60 of 60")


def test_markdown_code_and_json_are_shown_without_becoming_markup(made: tuple[Dicast, str], open_page: Open) -> None:
    seen = open_page(made[1])
    seen.go("#/jobs")
    drawn = seen.page.evaluate(
        """async () => {
          const { formOf, rendered } = await import("/page/markdown.js");
          const text = "# A head\\n\\n**bold** <img src=x onerror='stolen = 1'> [here](javascript:alert(1))\\n\\n" +
            "- one\\n- two `code`\\n  - inner\\n\\n```js\\nwindow.stolen = 1 // <b>\\n```" +
            "\\n\\n| a | b |\\n|---|---|\\n| 1 | <i>2</i> |";
          document.querySelector("main").replaceChildren(...rendered(text));
          const deep = ">".repeat(5000) + "`".repeat(9000) + "[".repeat(5000);
          rendered(deep);
          const main = document.querySelector("main"), made = main.querySelectorAll("a, img, b, i").length;
          return [formOf(text), formOf('{"a": [1]}'), formOf("Plain words."), main.innerText, made,
            main.querySelectorAll("li").length];
        }"""
    )
    assert drawn[:3] == ["markdown", "json", "plain"] and drawn[4:] == [0, 3]
    for told in ("A head", "<img src=x", "here (javascript:alert(1))", "window.stolen = 1 // <b>", "<i>2</i>"):
        assert told in drawn[3], told


def test_wishes_of_a_pool_are_set_and_taken_back(made: tuple[Dicast, str], open_page: Open) -> None:
    seen, address = open_page(made[1]), made[1]
    seen.expected = ["422"]
    seen.go("#/pools/sim")
    seen.page.get_by_label("Ceiling").fill("7")
    seen.page.get_by_role("button", name="Set").click()
    with client(address) as http:
        until(lambda: http.get("/pools/sim").json()["override"].get("ceiling") == 7, "the ceiling is set")
        # The fields are set anew by the answer, which would take back what is filled in before it.
        seen.page.wait_for_selector("#said:has-text('In force at once')", state="attached")
        seen.page.get_by_label("Fixed limit").fill("9")
        seen.page.get_by_role("button", name="Set").click()
        assert "ceiling" in seen.page.wait_for_selector("#notice:not([hidden])").inner_text()
        seen.page.get_by_role("button", name="Take all back").click()
        until(lambda: "ceiling" not in http.get("/pools/sim").json()["override"], "the ceiling is taken back")


def test_what_was_learned_of_a_pools_latency_is_drawn_and_told(made: tuple[Dicast, str], open_page: Open) -> None:
    seen = open_page(made[1])
    points = [(8.0, 7.9, 1.01), (17.0, 16.2, 1.04), (36.0, 30.9, 1.16)]

    curve = [{"open": n, "per_s": per_s, "latency_s": s, "at": 0.0} for n, per_s, s in points]
    knee = {"level": 34, "reason": "<b>why</b>", "curve": curve}
    with client(made[1]) as http:  # of a pool that has been used
        for ceiling in (7, None):
            assert http.patch("/pools/sim", json={"ceiling": ceiling}).status_code == 200
        pool = http.get("/pools/sim").json() | {"knee": knee}
    # Answered from here: a request passed on to the server may still be open when the page, which polls, is closed.
    seen.page.route("**/pools/sim", lambda route: route.fulfill(json=pool))
    seen.go("#/pools/sim")
    seen.page.wait_for_selector("h2:has-text('How latency grows with load')")
    assert seen.page.get_by_text("At most 34 calls: <b>why</b>").count() == 1
    plot = seen.page.get_by_role("img", name="36 open: 30.9 answers a second, 1.2 s each")
    assert plot.locator("path").count() == 2
    seen.page.get_by_text("seconds each, up to 1.2").wait_for()


# ------------------------------------------------------------------ blind rating
def press(seen: Watched, *keys: str) -> None:
    for key in keys:
        seen.page.keyboard.press(key)


def test_a_person_rates_by_keyboard_alone(made: tuple[Dicast, str], open_page: Open) -> None:
    dicast, address = made
    blind = BlindRatings(job_folder(dicast.settings.results_dir, "editorials"))
    sent: list[str] = []
    seen = open_page(address)
    seen.page.on("request", lambda request: sent.append(request.url))
    seen.go("#/rate/editorials", wait="#rater")
    seen.page.keyboard.type("ada")
    press(seen, "Enter")
    seen.page.wait_for_selector("text=Item 1 of 4")

    def mine() -> list[int]:
        return [score for key, score in blind.ratings().items() if key[2] == "ada"]

    press(seen, "4", "2")  # typed ahead: one after the other
    seen.page.wait_for_selector("#entry")  # a scale of 101 values
    seen.page.keyboard.type("77")
    press(seen, "Enter")
    seen.page.wait_for_selector("text=Item 2 of 4")
    assert mine() == [4, 2, 77]
    press(seen, "9")
    seen.page.wait_for_selector("#notice:not([hidden])")
    press(seen, "Backspace", "Backspace", "u")
    until(lambda: mine() == [], "all is taken back")
    press(seen, "5", "ArrowRight", "ArrowLeft", "1")
    until(lambda: mine() == [5, 1], "both are kept")  # the next scale was seen once before, on the way there
    seen.page.wait_for_selector("#entry")
    seen.page.reload()  # and on, where it was left
    seen.page.wait_for_selector("text=2 of 12")
    for n in range(3):
        seen.page.wait_for_selector("#entry")
        seen.page.keyboard.type(str(10 * n))
        press(seen, "Enter")
        seen.page.wait_for_selector(f"text=Item {n + 2} of 4")
        press(seen, "3", "4")
    seen.page.wait_for_selector("#entry")
    seen.page.keyboard.type("50")
    press(seen, "Enter")
    seen.page.wait_for_selector("text=You have rated everything")
    assert len(mine()) == 12
    assert not [
        url
        for url in sent
        if re.search(
            r"/(report|opinions|items?|scores|text|agreement)(\?|$)",
            url.replace("/rating/item", "").replace("/rating/scores", ""),
        )
    ]
    press(seen, "Tab", "Enter")
    seen.page.wait_for_selector("text=How you and the judges agree", timeout=60_000)
    assert "12 ratings by ada" in seen.page.inner_text("main")
    assert seen.axe() == []
    seen.page.reload()
    seen.page.wait_for_selector("text=How you and the judges agree")


def test_what_cannot_be_said_is_told_and_all_dimensions_stand_at_once(
    made: tuple[Dicast, str], open_page: Open
) -> None:
    dicast, address = made
    world.finished(dicast, "open", 3)
    with client(address) as http:
        http.post("/jobs/open/rating", json={"size": 3})
    blind = BlindRatings(job_folder(dicast.settings.results_dir, "open"))
    sent: list[str] = []
    seen = open_page(address, viewport={"width": 390, "height": 844})
    seen.page.on("request", lambda request: sent.append(request.url + (request.post_data or "")))
    seen.go("#/rate/open?rater=gil")
    seen.page.get_by_label("All dimensions at once").check()
    assert seen.page.locator(".question").count() == 3
    seen.page.locator(".question >> nth=1").locator("[data-score='4']").click()
    seen.page.wait_for_selector(".question.now:has-text('Sound figures')")
    press(seen, "x")
    seen.page.wait_for_selector("text=2 of 9")
    seen.page.get_by_text("Note").first.click()
    seen.page.get_by_label("Note on Clear position").fill("Half of it is missing.")
    press(seen, "Tab")
    until(lambda: len(blind.notes()) == 2, "note and question are kept")
    assert list(blind.ratings().values()) == [4] and seen.axe() == []
    assert {(key[1], note.cannot_say, note.text) for key, note in blind.notes().items()} == {
        ("sound", True, ""), ("clear", False, "Half of it is missing."),
    }  # fmt: skip
    assert not [url for url in sent if "essay" in url], "what an item is called may tell what it is of"
    box = seen.page.locator(".ask .steps").bounding_box()
    assert box is not None and box["y"] + box["height"] <= 844, "the buttons are in reach on a phone"
    seen.page.reload()
    seen.page.wait_for_selector("text=2 of 9")


def test_a_rating_whose_answer_is_lost_counts_once(made: tuple[Dicast, str], open_page: Open) -> None:
    dicast, address = made
    world.finished(dicast, "lost", 2)
    with client(address) as http:
        http.post("/jobs/lost/rating", json={"size": 2})
    blind = BlindRatings(job_folder(dicast.settings.results_dir, "lost"))
    seen = open_page(address)
    seen.expected = ["ERR_"]
    seen.go("#/rate/lost?rater=dora")

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    seen.page.route("**/rating/scores", lose, times=1)
    press(seen, "4")
    assert "does not answer" in seen.page.wait_for_selector("#notice:not([hidden])").inner_text()
    assert list(blind.ratings().values()) == [4]
    assert "0 of 6" in seen.page.inner_text("main"), "what was not acknowledged is not counted"
    press(seen, "2")  # the same question again
    seen.page.wait_for_selector("text=1 of 6")
    assert list(blind.ratings().values()) == [2]
    seen.page.reload()
    seen.page.wait_for_selector("text=1 of 6")


def test_a_pair_is_rated_by_its_letters(made: tuple[Dicast, str], open_page: Open) -> None:
    dicast, address = made
    blind = BlindRatings(job_folder(dicast.settings.results_dir, "pairs"))
    seen = open_page(address)
    seen.go("#/rate/pairs?rater=flo")
    wanted = {}
    for n in range(4):
        seen.page.wait_for_selector(f"text=Item {n + 1} of 4")
        shown = seen.page.inner_text(".sides .text >> nth=0")
        own_first = shown.startswith("The first")
        wanted[re.sub(r"\D*(\d+).*", r"pair-\1", shown, flags=re.S)] = 1 if own_first else -1
        assert seen.page.inner_text(".level >> nth=0").split() == ["1", "A"]
        press(seen, "a", "1")  # A is better, then A is much better
    seen.page.wait_for_selector("text=You have rated everything")
    kept = {key: score for key, score in blind.ratings().items() if key[2] == "flo"}
    assert kept == {
        (item, of, "flo"): by * side for item, side in wanted.items() for of, by in (("better", 1), ("clearer", 2))
    }
    press(seen, "u", "t")

    def strengths() -> list[int]:
        return sorted(abs(score) for key, score in blind.ratings().items() if key[2] == "flo")

    until(lambda: strengths() == [0, 1, 1, 1, 1, 2, 2, 2], "the last one is a tie now")


def test_two_raters_at_once(made: tuple[Dicast, str], open_page: Open) -> None:
    dicast, address = made
    world.finished(dicast, "pair", 6)
    with client(address) as http:
        http.post("/jobs/pair/rating", json={"size": 6})
    seen = [open_page(address), open_page(address)]
    for each, name in zip(seen, ("ben", "cleo"), strict=True):
        each.go(f"#/rate/pair?rater={name}")
    for _ in range(3):
        for each in seen:
            press(each, "3", "5")
        for each in seen:
            each.page.wait_for_selector("#entry")
            each.page.keyboard.type("40")
            press(each, "Enter")
        for each in seen:
            each.page.wait_for_selector("#entry", state="detached")
    ratings = BlindRatings(job_folder(dicast.settings.results_dir, "pair")).ratings()
    assert [sum(key[2] == name for key in ratings) for name in ("ben", "cleo")] == [9, 9]


# ------------------------------------------------------------------ tokens
def test_one_signs_in_out_and_is_told_when_the_token_ends(tmp_path: Path, redis_url: str, open_page: Open) -> None:
    dicast = installation(tmp_path, redis_url)
    world.finished(dicast, "editorials", 5)
    token = dicast.tokens.issue("ada", [Scope.JOB_READ], ttl_s=600)
    rater = dicast.tokens.issue("rater", [Scope.RATING_WRITE], ttl_s=600)
    with served(dicast) as address:
        seen = open_page(address)
        seen.expected = ["401", "404"]
        seen.go("#/jobs/editorials", wait="#token")
        assert seen.axe() == []
        seen.page.fill("#token", "nonsense")
        press(seen, "Enter")
        assert "no token of Dicast's" in seen.page.wait_for_selector(".wrong:not(:empty)").inner_text()
        seen.page.fill("#token", token)
        press(seen, "Enter")
        seen.page.wait_for_selector("h1:has-text('editorials')")
        assert seen.page.get_by_role("button", name="Judge these again").count() == 0, "the token is for reading"
        assert token not in seen.page.content() and token not in seen.page.url
        assert seen.page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
        seen.page.get_by_role("link", name="All items").wait_for()
        dicast.tokens.revoke(next(each.id for each in dicast.tokens.list() if each.subject == "ada"))
        seen.page.evaluate("location.hash = '#/jobs/editorials/items'")
        assert "revoked" in seen.page.wait_for_selector(".wrong:not(:empty)").inner_text()
        seen.page.fill("#token", rater)
        press(seen, "Enter")
        seen.page.wait_for_selector("text=the token is not for this")
        seen.page.get_by_role("button", name="Sign out").click()
        seen.page.wait_for_selector("#token")
        assert seen.page.evaluate("sessionStorage.length") == 0
        seen.expected = ["401", "403", "404"]


def test_without_a_job_it_says_so(tmp_path: Path, redis_url: str, open_page: Open) -> None:
    dicast = installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false")
    with served(dicast) as address:
        seen = open_page(address)
        seen.go("#/jobs")
        assert "There is no job yet." in seen.page.inner_text("main")
        seen.go("#/nodes")
        assert "No worker is known." in seen.page.inner_text("main")
        seen.expected = ["404", "does not answer"]
        seen.page.goto(f"{address}/#/jobs/nobody")
        seen.page.wait_for_selector("text=no job 'nobody'")
    with pytest.raises(UnknownJob):
        dicast.ledger.status("nobody")
