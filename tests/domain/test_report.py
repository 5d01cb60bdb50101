from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest

from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.opinion import (
    EXAMPLES_A_REASON,
    MAX_EXAMPLE_LENGTH,
    MAX_EXAMPLES,
    MAX_REASONS,
    ErrorKind,
    EvaluationError,
    Opinion,
    Usage,
)
from dicast.app.domain.panel import Agent
from dicast.app.domain.report import (
    MAX_MODELS,
    OTHER_MODELS,
    Report,
    ReportAgent,
    ReportBuilder,
    ReportDimension,
    ReportHeader,
    ResultFiles,
    UnexpectedOpinion,
)

FILES = ResultFiles(directory="/r/j", opinions_jsonl="o", opinions_parquet="p", errors_jsonl="e", report="r")
JUDGES = [Agent(name="strict", pool="openai", model="m"), Agent(name="kind")]
CRITERIA = [
    Dimension(id="clear", instructions="?", weight=3.0, scale=Scale(min=0, max=10)),
    Dimension(id="true", instructions="?", scale=Scale(min=0, max=10)),
]


def header(**changes: object) -> ReportHeader:
    values = {
        "job_id": "j",
        "project": "p",
        "status": "completed",
        "units": 4,
        "started": datetime(2025, 1, 1, tzinfo=UTC),
        "finished": datetime(2025, 1, 1, 0, 0, 9, tzinfo=UTC),
        "wall_s": 9.0,
        "calls": 5,
        "agents": [ReportAgent.from_agent(a) for a in JUDGES],
        "dimensions": [ReportDimension.from_dimension(d) for d in CRITERIA],
    }
    return ReportHeader.model_validate({**values, **changes})


def opinion(judge: str, criterion: str, score: int | None) -> Opinion:
    return Opinion(
        judge=judge, criterion_id=criterion, item_id="i", replicate=0, score=score, argument="", model="m",
        usage=Usage(input_tokens=100, output_tokens=7),
    )  # fmt: skip


def error(kind: ErrorKind, message: str = "no") -> EvaluationError:
    return EvaluationError(judge="kind", criterion_id="true", item_id="i", replicate=0, kind=kind, message=message)


def test_a_report_adds_everything_up() -> None:
    builder = ReportBuilder(header())
    for judge, criterion, score in [
        ("strict", "clear", 2), ("kind", "clear", 8), ("strict", "true", 10), ("kind", "true", None),
    ]:  # fmt: skip
        builder.add_opinion(opinion(judge, criterion, score))
    builder.add_error(error(ErrorKind.TIMEOUT))
    report = builder.build(FILES)

    assert (report.units, report.scored, report.failed, report.missing) == (4, 3, 1, 0)
    assert (report.input_tokens, report.output_tokens) == (400, 28)
    assert report.overall == pytest.approx((3 * 0.5 + 1 * 1.0) / 4)
    clear, true = report.by_dimension
    assert (clear.scores.mean, clear.mean_difference, clear.pairs) == (5.0, 6.0, 1)
    assert (true.scores.mean, true.scores.failures, true.mean_difference, true.pairs) == (10.0, 1, None, 0)
    assert [(c.judge, c.mean, c.failures) for c in true.by_judge] == [("strict", 10.0, 0), ("kind", None, 1)]
    strict, kind = report.by_agent
    assert strict.agent.pool == "openai"
    assert strict.overall == pytest.approx((3 * 0.2 + 1 * 1.0) / 4)
    assert (kind.n, kind.failures, kind.overall) == (1, 1, pytest.approx(0.8))
    assert strict.scores is not None
    assert strict.scores.histogram == {2: 1, 10: 1}
    assert [(g.kind, g.count) for g in report.errors] == [(ErrorKind.TIMEOUT, 1)]


def test_a_report_survives_json() -> None:
    builder = ReportBuilder(header())
    builder.add_opinion(opinion("strict", "clear", 3))
    builder.add_error(error(ErrorKind.PROVIDER))
    report = builder.build(FILES)
    assert Report.model_validate(orjson.loads(orjson.dumps(report.model_dump(mode="json")))) == report


def test_scores_of_unlike_scales_are_not_averaged_over_an_agent() -> None:
    unlike = [
        ReportDimension(id="clear", scale_min=0, scale_max=10),
        ReportDimension(id="true", scale_min=0, scale_max=4),
    ]
    builder = ReportBuilder(header(dimensions=unlike))
    builder.add_opinion(opinion("strict", "clear", 10))
    builder.add_opinion(opinion("strict", "true", 2))
    strict = builder.build(FILES).by_agent[0]
    assert strict.scores is None
    assert (strict.n, strict.overall) == (2, 0.75)


def test_a_single_judge_has_nobody_to_differ_from() -> None:
    builder = ReportBuilder(header(agents=[ReportAgent(name="strict")]))
    builder.add_opinion(opinion("strict", "clear", 3))
    report = builder.build(FILES)
    assert (report.by_dimension[0].mean_difference, report.agreement_share) == (None, 1.0)


def test_examples_of_errors_are_few_and_short() -> None:
    builder = ReportBuilder(header())
    for i in range(50):
        builder.add_error(error(ErrorKind.MALFORMED, f"{i}" + "x" * 5000))
    builder.add_error(error(ErrorKind.TIMEOUT))
    groups = builder.build(FILES).errors
    assert [(g.kind, g.count) for g in groups] == [(ErrorKind.MALFORMED, 50), (ErrorKind.TIMEOUT, 1)]
    assert len(groups[0].examples) == MAX_EXAMPLES
    assert all(len(e.message) == MAX_EXAMPLE_LENGTH for e in groups[0].examples)


def test_an_empty_job_has_a_report() -> None:
    report = ReportBuilder(header(status="cancelled")).build(FILES)
    assert (report.scored, report.missing, report.overall) == (0, 4, None)


def test_many_judges_on_many_dimensions_are_not_listed_one_by_one() -> None:
    agents = [ReportAgent(name=f"a{i}") for i in range(101)]
    dimensions = [ReportDimension(id=f"d{i}", scale_min=1, scale_max=5) for i in range(100)]
    report = ReportBuilder(header(agents=agents, dimensions=dimensions)).build(FILES)
    assert report.by_dimension[0].by_judge == []


@pytest.mark.parametrize("judge, criterion", [("nobody", "clear"), ("kind", "beautiful")])
def test_a_voice_from_elsewhere_is_refused(judge: str, criterion: str) -> None:
    with pytest.raises(UnexpectedOpinion, match=f"job j has no judge '{judge}' with criterion '{criterion}'"):
        ReportBuilder(header()).add_opinion(opinion(judge, criterion, 1))


def test_what_errors_of_one_kind_say_is_told_apart() -> None:
    """However many there are of the first, the second is seen."""
    builder = ReportBuilder(header())
    for _ in range(40):
        builder.add_error(error(ErrorKind.REJECTED, "401 invalid_api_key"))
    builder.add_error(error(ErrorKind.REJECTED, "404 model_not_found"))
    (group,) = builder.build(FILES).errors
    assert [(r.message, r.count) for r in group.reasons] == [("401 invalid_api_key", 40), ("404 model_not_found", 1)]
    assert [e.message for e in group.examples].count("404 model_not_found") == 1
    assert (group.count, len(group.examples)) == (41, EXAMPLES_A_REASON + 1)


def test_reasons_without_end_are_bounded() -> None:
    builder = ReportBuilder(header())
    for n in range(1000):
        builder.add_error(error(ErrorKind.REJECTED, f"{n} tokens are too many"))
    (group,) = builder.build(FILES).errors
    assert (group.count, len(group.reasons)) == (1000, MAX_REASONS)


def test_the_models_that_answered_are_named_with_how_often() -> None:
    agents = [ReportAgent(name="strict", model="openai/gpt-4o"), ReportAgent(name="kind")]
    builder = ReportBuilder(header(agents=agents))
    for model, score in (("smollm", 2), ("smollm", 3), ("other", 4), ("openai/gpt-4o", None)):
        builder.add_opinion(opinion("strict", "clear", score).model_copy(update={"model": model}))
    strict, kind = builder.build(FILES).by_agent
    assert (strict.agent.model, strict.models) == ("openai/gpt-4o", {"smollm": 2, "other": 1})
    assert kind.models == {}


def test_models_without_end_are_bounded() -> None:
    builder = ReportBuilder(header())
    for n in range(1000):
        builder.add_opinion(opinion("strict", "clear", 5).model_copy(update={"model": f"m{n}"}))
    models = builder.build(FILES).by_agent[0].models
    assert (len(models), sum(models.values()), models[OTHER_MODELS]) == (MAX_MODELS + 1, 1000, 1000 - MAX_MODELS)
