"""Finished jobs for the page to show, made as a worker would write them, and what is hostile in them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from dicast.app.application import Dicast
from dicast.app.domain.arrangement import Arrangement
from dicast.app.domain.dimension import attained
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion
from dicast.app.domain.price import Place, Price, TokenRates
from dicast.app.domain.report import Report, ReportAgent, ReportDimension, ReportHeader
from dicast.app.reports.files import finish, write_page
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.stored_items import write_arranged, write_items

START = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
SCRIPT = "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 2'>"
HOSTILE = (
    f"{SCRIPT} \u202eRTL\u202c \u05e9\u05dc\u05d5\u05dd \u200b\ufeff zero \x00 NUL 👩‍👩‍👧‍👦 "
    "{{7*7}} javascript:alert(1)"
)
"""In every field that holds free text."""
HOSTILE_ID = '<img src=x onerror="window.stolen=3">&"\' שלום 👩'
"""As hostile as an id may be: without characters that cannot be seen."""
LONG_LINE = "word" * 249_000
"""1 MB without a space: as much as a text may have, but for its prompt."""
PLAIN = (
    "The council plans to close the ring road to cars on Sundays. Supporters point to cleaner air and to shops that "
    "gained customers when the market street was closed. Opponents fear for deliveries and for those who walk badly."
)


def job(name: str, items: int, *, hostile: bool = False) -> dict[str, Any]:
    """A job with three judges and three dimensions."""
    text = HOSTILE if hostile else PLAIN
    return {
        "id": name, "project": SCRIPT[:60] if hostile else "newsroom",
        "items": [_item(n, hostile=hostile) for n in range(items)],
        "agents": [
            {"name": HOSTILE_ID if hostile and n == 0 else judge, "persona": "p"} for n, judge in enumerate(JUDGES)
        ],
        "dimensions": [
            {"id": HOSTILE_ID if hostile else "clear", "name": text[:90] if hostile else "Clear position",
             "instructions": f"{text} Does the text take one position and hold it?", "scale": {"min": 1, "max": 5},
             "levels": {1: f"no position {text[:80]}", 3: "a position, but late", 5: "unmistakable throughout"}},
            {"id": "fair", "name": "Fair to those who disagree", "instructions": "Are objections met, not mocked?",
             "scale": {"min": 1, "max": 5}},
            {"id": "sound", "name": "Sound figures", "instructions": "Are numbers right, and do they prove enough?",
             "scale": {"min": 0, "max": 100}},
        ],
    }  # fmt: skip


JUDGES = ("copy editor", "statistician", "undecided voter")


def conversations(name: str) -> dict[str, Any]:
    """A job of conversations with calls of tools, hostile ones among them."""
    turns = [
        {"role": "user", "content": "When does the ring road open?"},
        {"role": "assistant", "tool_calls": [{"name": "calendar", "arguments": {"q": SCRIPT}}]},
        {"role": "tool", "name": "calendar", "content": HOSTILE},
        {"role": "assistant", "content": PLAIN},
    ]
    return {**job(name, 0), "items": [{"id": f"talk-{n}", "messages": turns} for n in range(2)]}


def with_criteria(name: str) -> dict[str, Any]:
    """A job of items that bring their own criteria, one of which states a fault."""
    criteria = [{"text": f"Names a source {SCRIPT}", "points": 5}, {"text": "Rambles", "points": -3}]
    health = {"id": "health", "instructions": "Does it serve the asker?", "scale": "criteria"}
    return {
        **job(name, 0), "agents": [{"name": JUDGES[0]}], "dimensions": [health],
        "items": [{"id": f"case-{n}", "text": PLAIN, "criteria": criteria} for n in range(3)],
    }  # fmt: skip


def pairs(name: str, items: int) -> dict[str, Any]:
    """A job of pairs: which is better, and how much."""
    return {
        "id": name, "agents": [{"name": judge, "persona": "p"} for judge in JUDGES[:2]], "orders": "given",
        "items": [
            {"id": f"pair-{n}", "text_a": f"The first text of {n}.", "text_b": f"The second text of {n}. {SCRIPT}",
             "prompt": "Say it in a sentence."}
            for n in range(items)
        ],
        "dimensions": [
            {"id": "better", "instructions": "Which is better?", "scale": "preference"},
            {"id": "clearer", "instructions": "Which is clearer, and how much?", "scale": {"preference": "strength"}},
        ],
    }  # fmt: skip


def _item(n: int, *, hostile: bool) -> dict[str, Any]:
    if hostile:
        text = LONG_LINE if n == 1 else f"{HOSTILE} {n}"
        return {"id": HOSTILE_ID if n == 0 else f"item-{n}", "text": text, "prompt": HOSTILE}
    return {
        "id": f"essay-{n:03}",
        "text": f"{PLAIN}\n\nThis is draft {n}. " + PLAIN,
        "prompt": "Write an opinion piece of 80 words.",
    }


def finished(dicast: Dicast, name: str, items: int, *, hostile: bool = False, failed: int = 0) -> Report:
    """A job that has ended, in the store and among the files."""
    return ended(dicast, job(name, items, hostile=hostile), hostile=hostile, failed=failed)


def ended(
    dicast: Dicast, document: dict[str, Any], *, hostile: bool = False, failed: int = 0, chance: float = 0.1
) -> Report:
    """The same of any job; `failed` of its units fail, each with this chance."""
    spec, name = EvaluationJob.model_validate(document), document["id"]
    root = dicast.settings.results_dir
    assert isinstance(spec.items, list)
    begin(root, name, "abc")
    opinions = list(_opinions(spec, failed, HOSTILE if hostile else "The position comes late, but holds.", chance))
    errors = _timeouts(opinions, HOSTILE if hostile else "no answer within 60 s")
    write_page(root, name, "abc", "0", 0, opinions, errors)
    write_items(root, name, "abc", [spec.items])
    header = ReportHeader(
        job_id=name, project=spec.project, status="completed", units=len(opinions), started=START,
        finished=START + timedelta(seconds=80), wall_s=80.0, calls=len(opinions) + 7, retries=7,
        agents=[ReportAgent.from_agent(agent) for agent in spec.agents],
        dimensions=[ReportDimension.from_dimension(d, spec.panel_of(d)) for d in spec.dimensions], keep=spec.keep,
    )  # fmt: skip
    report = finish(root, name, "abc", header)
    dicast.submit(spec)
    registered(dicast, report)
    return report


def _timeouts(opinions: list[Opinion], told: str = "no answer within 60 s") -> list[EvaluationError]:
    return [
        EvaluationError(judge=o.judge, criterion_id=o.criterion_id, item_id=o.item_id, replicate=0,
                        kind=ErrorKind.TIMEOUT, message=told, attempts=3)
        for o in opinions if o.score is None
    ]  # fmt: skip


def registered(dicast: Dicast, report: Report) -> None:
    """The ledger knows that the job of this report has ended; the job is one that somebody has submitted, or any."""
    name = report.job_id
    if dicast.ledger.is_free(name):
        dicast.submit({**job(name, 1), "project": report.project})
    ms = round(1000 * report.started.timestamp())
    fields = {
        "state": "completed", "report": report.model_dump_json(), "incarnation": "abc", "started_ms": str(ms),
        "finished_ms": str(ms + 80_000), "done": str(report.units), "scored": str(report.scored),
        "failed": str(report.failed), "calls": str(report.calls), "retries": "7", "tokens_in": "91234",
        "tokens_out": "20411", "units": str(report.units),
    }  # fmt: skip
    dicast.store.hset(dicast.keys.at("job", name), mapping=fields)


def running(dicast: Dicast, name: str, done: int, units_items: int = 40) -> None:
    """A job that is under way, as far as the store tells."""
    dicast.submit(job(name, units_items))
    progress(dicast, name, done)


def half_done(dicast: Dicast, name: str) -> None:
    """A job of two systems under way, in random order, of which some pages are gathered; its calls have cost
    something."""
    document = job(name, 60)
    for n, item in enumerate(document["items"]):
        item["metadata"] = {"system": f"bot {n % 2}"}
    dicast.submit({**document, "groups": ["system"], "max_calls": 10_000})
    layout, root = dicast.ledger.layout(name), dicast.settings.results_dir
    begin(root, name, layout.incarnation)
    items = [Item.model_validate(item) for item in document["items"]]
    random.Random(3).shuffle(items)
    write_arranged(job_folder(root, name), iter(items), Arrangement(), random.Random(3), len(items))
    judged = layout.spec.model_copy(update={"items": items[:30]})
    opinions = list(_opinions(judged, 5, "The position comes late, but holds."))
    write_page(root, name, layout.incarnation, "0", 0, opinions, _timeouts(opinions))
    places = [[Place("sim", "dear", Price(TokenRates(2, 3, 2, 2)))], [Place("sim", "free")], [Place("sim", "free")]]
    books = {"b:0.0.20781:calls": 90, "b:0.0.20781:spent": 12 * 10**11, "b:1.0.20781:calls": 90, "spent": 12 * 10**11}
    stored = orjson.dumps([[place.as_dict() for place in own] for own in places])
    dicast.store.hset(dicast.keys.at("job", name), mapping={**books, "reserved_cost": 10**11, "places": stored})
    progress(dicast, name, len(opinions))


def failing(dicast: Dicast, name: str, done: int, *, page: int, told: str) -> None:
    """A page of a running job's is gathered, with an error."""
    root = dicast.settings.results_dir
    begin(root, name, "abc")
    error = EvaluationError(judge=JUDGES[0], criterion_id="fair", item_id="essay-003", replicate=0,
                            kind=ErrorKind.TIMEOUT, message=told, attempts=3)  # fmt: skip
    write_page(root, name, "abc", "0", page, [], [error])
    progress(dicast, name, done)
    dicast.store.hset(dicast.keys.at("job", name), "failed", str(page + 1))


def progress(dicast: Dicast, name: str, done: int) -> None:
    ms = str(round(1000 * START.timestamp()))
    fields = {"state": "running", "started_ms": ms, "done": str(done), "scored": str(done), "calls": str(done + 3),
              "retries": "2", "requeues": "1", "tokens_in": str(done * 210), "tokens_out": str(done * 60)}  # fmt: skip
    dicast.store.hset(dicast.keys.at("job", name), mapping=fields)


def _answers(item: Item, score: int | None) -> dict[str, Any]:
    """What a judge says of an item's own criteria: all are met but the last, of which nothing is said."""
    if item.criteria is None or score is None:
        return {}
    answers = [True] * (len(item.criteria) - 1) + [None]
    shares = attained([criterion.points for criterion in item.criteria], answers)
    return {"answers": answers, "attained": tuple(shares), "score": shares.score}


def _opinions(spec: EvaluationJob, failed: int, argument: str, chance: float = 0.1) -> Iterator[Opinion]:
    rng, left = random.Random(7), failed
    assert isinstance(spec.items, list)
    for item in spec.items:
        good = rng.gauss(0.6, 0.2)
        for n, agent in enumerate(spec.agents):
            for d in spec.dimensions:
                at = min(1.0, max(0.0, good + (n - 1) * 0.12 + rng.gauss(0, 0.12)))
                score: int | None = round(d.scale.min + at * (d.scale.max - d.scale.min))
                if left and rng.random() < chance:
                    score, left = None, left - 1
                yield Opinion(
                    judge=agent.name, criterion_id=d.id, item_id=item.id, replicate=0,
                    argument="" if score is None else f"{argument} ({item.id[:40]})",
                    cited_evidence=[] if score is None else [item.output[:48], "cleaner  air and to the SHOPS"],
                    model=HOSTILE[:40] if argument == HOSTILE else "small-judge-3b", latency_s=1.0,
                    metadata={name: item.metadata[name] for name in spec.keep if name in item.metadata},
                    **{"score": score, **_answers(item, score)},
                )  # fmt: skip
