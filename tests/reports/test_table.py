from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from dicast.app.domain.concluding import _failures, counts_of
from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports.terminal import MAX_ROWS, bars, print_heat_map, print_report
from tests.reports.building import builder, error, files_in, opinion

HOSTILE = "[bold red]x[/bold red] [link=http://evil]y[/link] :smile:\x1b[2J\x07\x9b31m\u202egnp\nJob forged"


def rendered(report: Report, width: int = 80, *, terminal: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    colors = "standard" if terminal else None
    print_report(report, Console(file=file, width=width, force_terminal=terminal, color_system=colors))
    file.flush()
    return raw.getvalue().decode(encoding)


def report_of(names: list[str], judges: list[str], *, status: str = "completed", **kwargs: object) -> Report:
    dimensions = [ReportDimension(id=f"d{i}", name=name, scale_min=1, scale_max=10) for i, name in enumerate(names)]
    agents = [ReportAgent(name=judge, model="smollm2-135m") for judge in judges]
    built = builder(len(names) * len(judges), agents=agents, dimensions=dimensions, status=status, **kwargs)
    for i, dimension in enumerate(dimensions):
        for j, judge in enumerate(judges):
            failed = i == j == 1
            score = None if failed else 1 + (3 * i + j) % 10
            built.add_opinion(opinion(0, judge, score, criterion_id=dimension.id))
            if failed:
                built.add_error(error(0, judge, criterion_id=dimension.id, kind=ErrorKind.TIMEOUT, message="no answer"))
    return built.build(files_in("/results/job-1"))


DIMENSIONS = ["Clarity", "Correctness", "Depth of the reasoning that is shown", "Tone", "Evidence"]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("judges", [["strict"], ["strict", "kind", "plain"], [f"judge number {i}" for i in range(30)]])
def test_no_line_is_wider_than_the_console(width: int, judges: list[str]) -> None:
    lines = rendered(report_of(DIMENSIONS, judges), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


@pytest.mark.parametrize(
    "width, titles",
    [
        (40, ["Dimension", "mean", "failed"]),
        (80, ["Dimension", "mean", "sd", "spread", "strict", "kind", "plain", "failed"]),
        (120, ["Dimension", "scale", "mean", "sd", "spread", "differ", "strict", "kind", "plain", "failed"]),
    ],
)
def test_a_wider_console_shows_more(width: int, titles: list[str]) -> None:
    text = rendered(report_of(DIMENSIONS, ["strict", "kind", "plain"]), width)
    head = next(line for line in text.splitlines() if line.startswith("Dimension"))
    assert head.split() == titles
    assert ("differ   how far" in text) == ("differ" in titles)


def test_a_name_is_cut_only_where_its_room_ends() -> None:
    long = "Faithfulness to the sources given"
    assert long in rendered(report_of([long], ["strict", "kind"]), 120)
    cut = rendered(report_of([long], ["strict", "kind"]), 60)
    assert long not in cut and "Faithfulness to the sou" in cut


def test_the_figures_stand_in_their_rows() -> None:
    lines = rendered(report_of(["Clarity", "Correctness"], ["strict", "kind"]), 120).splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["Clarity"] == ["Clarity", "1..10", "1.50", "0.71", "██········", "1.00", "1.00", "2.00", "0"]
    assert rows["Correctness"][-3:] == ["4.00", "-", "1"]
    assert rows["timeout"][:4] == ["timeout", "1", "503", "no"]
    assert any("3 of 4 judgements scored, 1 failed, in 1 min 23 s" in line for line in lines)
    assert any("/results/job-1" in line for line in lines)


def test_a_long_error_is_shown_to_its_end_where_the_reason_stands() -> None:
    message = "invalid_api_key: " + "The request was refused by the gateway in front of all. " * 4 + "KEY EXPIRED"
    built = builder(1)
    built.add_opinion(opinion(0, score=None))
    built.add_error(error(0, kind=ErrorKind.REJECTED, message=message, status_code=None))
    text = rendered(built.build(files_in("/r")), 80)
    assert "KEY EXPIRED" in " ".join(text.split())
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_the_kinds_of_one_error_stand_in_a_row_each() -> None:
    built = builder(45)
    for n in range(40):
        built.add_error(error(n, kind=ErrorKind.REJECTED, message="invalid_api_key", status_code=401))
    for n in range(5):
        built.add_error(error(n, kind=ErrorKind.REJECTED, message=f"{n} is no model", status_code=404))
    lines = [line.split() for line in rendered(built.build(files_in("/r")), 120).splitlines()]
    assert ["rejected", "40", "401", "invalid_api_key"] in [line[:4] for line in lines]
    assert ["1", "404", "0", "is"] in [line[:4] for line in lines]
    assert ["3", "for", "other", "reasons,"] in [line[:4] for line in lines]


def test_the_models_that_answered_are_shown_and_not_those_asked_for() -> None:
    agents = [ReportAgent(name="strict", model="openai/gpt-4o"), ReportAgent(name="kind", model="asked")]
    built = builder(3, agents=agents)
    built.add_opinion(opinion(0, model="SmolLM2"))
    built.add_opinion(opinion(1, "kind", model="a"))
    built.add_opinion(opinion(2, "kind", model="b"))
    text = rendered(built.build(files_in("/r")), 120)
    assert "SmolLM2" in text and "a (1), b (1)" in text and "gpt-4o" not in text


def test_calls_of_unknown_cost_are_told() -> None:
    report = builder(1, calls_without_answer=3).build(files_in("/r"))
    assert "3 calls without an answer (cost unknown)" in " ".join(rendered(report, 200).split())


def test_long_lists_are_cut_and_say_so() -> None:
    text = rendered(report_of([f"dimension {i}" for i in range(MAX_ROWS + 5)], ["strict"]))
    assert "and 5 more dimensions, see report.json" in text
    assert "more judges" not in text


def test_without_a_terminal_it_is_plain_and_with_one_coloured() -> None:
    report = report_of(DIMENSIONS, ["strict", "kind"])
    assert "\x1b" not in rendered(report)
    assert "\x1b[31m" in rendered(report, terminal=True)


def test_an_ascii_console_gets_ascii() -> None:
    report = report_of(["Über die Klarheit und alles, was noch dazu gehört"], ["strikt ü", "kind"])
    text = rendered(report, encoding="ascii")
    assert "strikt \\xfc" in text
    assert "..." in text


@pytest.mark.parametrize("terminal", [False, True])
def test_text_of_models_and_callers_is_only_text(terminal: bool) -> None:
    dimensions = [ReportDimension(id="d", name=HOSTILE, scale_min=1, scale_max=10)]
    built = builder(1, agents=[ReportAgent(name=HOSTILE, model=HOSTILE)], dimensions=dimensions, project=HOSTILE)
    built.add_opinion(opinion(0, HOSTILE, None, criterion_id="d"))
    built.add_error(error(0, HOSTILE, criterion_id=HOSTILE, item_id=HOSTILE, message=HOSTILE))
    text = rendered(built.build(files_in("/r/" + HOSTILE)), 200, terminal=terminal)
    assert "[bold red]x[/bold red]" in text
    assert ":smile:" in text
    assert "\x1b[2J" not in text
    assert not set(text) & {"\x07", "\x9b", "\u202e", "\r"}
    assert not any(line.startswith("Job forged") for line in text.splitlines())
    if not terminal:
        assert "\x1b" not in text


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=40), st.integers(40, 130))
def test_any_name_keeps_to_the_width(name: str, width: int) -> None:
    text = rendered(report_of([name], [name, name + "2"]), width)
    assert max(cell_len(line) for line in text.split("\n")) <= width


@pytest.mark.parametrize(
    "histogram, low, high, want",
    [
        ({}, 1, 5, "·····"),
        ({1: 1}, 1, 5, "█····"),
        ({1: 1, 2: 8, 5: 4}, 1, 5, "▁█··▄"),
        ({1: 1, 2: 1_000_000}, 1, 2, "▁█"),
        ({0: 1, 9: 1, 10: 1, 100: 1}, 0, 100, "█········▃"),
    ],
)
def test_bars(histogram: dict[int, int], low: int, high: int, want: str) -> None:
    assert bars(histogram, low, high) == want


@given(st.integers(-50, 50), st.integers(1, 1000), st.data())
def test_bars_show_every_score_that_occurs(low: int, span: int, data: st.DataObject) -> None:
    histogram = data.draw(st.dictionaries(st.integers(low, low + span), st.integers(1, 10**6), max_size=20))
    shown = bars(histogram, low, low + span)
    assert len(shown) == min(span + 1, 10)
    assert (shown.strip("·") != "") == bool(histogram)
    assert ("█" in shown) == bool(histogram)


def test_where_a_job_stopped_asking_is_told_once() -> None:
    told = {"kind": "not_asked", "after": 20, "status_code": 401, "message": "401 wrong key"}
    stop = {"pool": "openai", "model": "m", **told}
    built = builder(2, stopped=[stop])
    built.add_error(error(0, kind=ErrorKind.NOT_ASKED, message="not asked: ..."))
    text = " ".join(rendered(built.build(files_in("/r")), 80).split())
    assert text.count("Stopped asking: the first 20 calls of m in pool 'openai' ended in: 401 wrong key") == 1


def test_where_a_job_went_online_is_told() -> None:
    change = {"pool": "openai", "message": "9 s were left until finish_by"}
    built = builder(2, went_online=[change], moved_online=2)
    built.add_opinion(opinion(0))
    report = built.build(files_in("/r"))
    text = " ".join(rendered(report, 80).split())
    assert "Went online: pool 'openai' was asked online: 9 s were left until finish_by" in text
    assert "2 units moved from a batch to online calls" in text
    said = " ".join(_failures(report, counts_of(report), []))
    assert "2 judgements were taken out of a batch for this, and asked online." in said


@pytest.mark.parametrize(("colors", "shaded"), [("truecolor", True), ("256", True), ("standard", False), (None, False)])
def test_a_heat_map_has_shades_where_the_terminal_has_them(colors: Any, shaded: bool) -> None:
    report = report_of([HOSTILE, *(f"dimension {n}" for n in range(9))], [f"judge {n}" for n in range(45)])
    file = io.StringIO()
    print_heat_map(report, Console(file=file, width=80, force_terminal=colors is not None, color_system=colors))
    text = file.getvalue()
    assert ("48;" in text) is shaded
    assert "\x07" not in text and "\x1b[2J" not in text and "evil" not in text
    assert "judge 39" in text and "judge 40" not in text and "all judges" in text
    assert "and 5 more judges and 5 more dimensions" in text


def test_one_judge_has_no_heat_map() -> None:
    file = io.StringIO()
    print_heat_map(report_of(["a"], ["alone"]), Console(file=file))
    assert file.getvalue() == ""


def test_what_does_not_fit_is_counted() -> None:
    names, judges = [f"n{n}" for n in range(MAX_ROWS + 3)], [f"j{n}" for n in range(MAX_ROWS + 1_200)]
    shown = rendered(report_of(names, judges[:1]))
    assert "and 3 more dimensions, see report.json" in shown and "more judges" not in shown
    shown = rendered(report_of(names[:1], judges))
    assert "and 1,200 more judges, see report.json" in shown and "more dimensions" not in shown
