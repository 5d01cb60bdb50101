"""Runs to Markdown."""

from __future__ import annotations

from typing import Any

from lab.bench.report import Column, Goal, Section, glance, listing, losses, markdown, summary, table, versions

COLUMNS = (Column("wall_s", "wall, s", -1), Column("lost", "lost", 0))
SECTION = Section("steady", "Steady", "About it.", "make it", {"a": "Anna", "b": "Bert", "c": "Carl"}, COLUMNS, "s.svg")


def run(
    contender: str, case: str = "steady", at: str = "2026-01-02T03:04:05+00:00", **figures: float
) -> dict[str, Any]:
    packages = {f"{contender}-package": "1.0"}
    return {"case": case, "contender": contender, "at": at, "figures": figures, "versions": packages, "load": 2.0}


RUNS = [
    run("b", wall_s=4.0),
    run("a", wall_s=1.0, lost=0),
    run("a", wall_s=2.0, lost=3),
    run("a", "other", wall_s=99.0),
]


def test_a_summary_has_what_all_runs_have() -> None:
    found = summary([*RUNS, run("a", wall_s=6.0)], "steady", "a")
    assert {name: tuple(value) for name, value in found.items()} == {"wall_s": (1.0, 2.0, 6.0)}
    assert summary(RUNS, "steady", "c") == {}


def test_a_row_for_whoever_has_runs_in_the_sections_order() -> None:
    assert table(RUNS, SECTION)[2:] == [
        "| Anna | 2 | 2 | 1.50 (1.00–2.00) | 1.50 (0.00–3.00) |",
        "| Bert | 1 | 2 | 4 | – |",
    ]


def test_cases_of_one_contender_can_be_the_rows() -> None:
    rows = {"never": "Never", "other": "Other", "steady": "Steady"}
    section = Section("steady", "Sizes", "", "", {"a": "Anna"}, COLUMNS, rows=rows)
    assert table(RUNS, section)[2:] == [
        "| Other | 1 | 2 | 99 | – |",
        "| Steady | 2 | 2 | 1.50 (1.00–2.00) | 1.50 (0.00–3.00) |",
    ]


def test_a_listing_has_every_figure() -> None:
    alone = Section("steady", "Steady", "", "", {"a": "Anna"}, ())
    measured = [*RUNS, run("a", wall_s=3.0, lost=0) | {"commit": "abc"}]
    assert listing(measured, alone)[2:] == [
        "| wall_s | 2 (1–3) |",
        "| lost | 0 (0–3) |",
        "| load | 2 |",
        "| commit | abc |",
    ]


def test_goals_are_met_by_the_median_and_only_measured_ones_are_told() -> None:
    goals = [
        Goal("steady", "a", "wall_s", "wall, s", 1.5),
        Goal("steady", "a", "lost", "lost", 2, at_least=True),
        Goal("steady", "c", "lost", "lost", 0),
        Goal("steady", "a", "cpu", "CPU", 0),
    ]
    assert glance(RUNS, goals)[2:] == [
        "| wall, s | ≤ 1.5 | 1.50 (1.00–2.00) | yes | steady | 2 |",
        "| lost | ≥ 2 | 1.50 (0.00–3.00) | **no** | steady | 2 |",
    ]
    assert glance(RUNS, goals[2:]) == []


def test_a_goal_may_be_a_multiple_of_a_rivals_median() -> None:
    goals = [Goal("steady", "b", "wall_s", "times Anna", 3, at_least=True, rival=rival) for rival in ("a", "c")]
    assert glance(RUNS, goals)[2:] == ["| times Anna | ≥ 3 | 2.67 | **no** | steady | 2 |"]


def test_a_goal_may_be_what_is_over_a_rivals_median() -> None:
    goals = [Goal("steady", "b", "wall_s", "s more than Anna", 3, rival=rival, over=True) for rival in ("a", "c")]
    assert glance(RUNS, goals)[2:] == ["| s more than Anna | ≤ 3 | 2.50 | yes | steady | 2 |"]


def test_a_rival_is_met_round_by_round_where_both_ran_as_often() -> None:
    first, second = "2026-01-02T03:04:05+00:00", "2026-01-02T04:04:05+00:00"
    runs = [
        run("a", at=second, wall_s=4.0),
        run("a", at=first, wall_s=1.0),
        run("b", at=first, wall_s=2.0),
        run("b", at=second, wall_s=12.0),
    ]
    ratio = Goal("steady", "b", "wall_s", "times Anna", 2, at_least=True, rival="a")
    over = Goal("steady", "b", "wall_s", "more", 2, rival="a", over=True)
    assert glance(runs, [ratio, over])[2:] == [
        "| times Anna | ≥ 2 | 2.50 (2.00–3.00) | yes | steady | 2 |",
        "| more | ≤ 2 | 4.50 (1.00–8.00) | **no** | steady | 2 |",
    ]


def test_the_page_says_when_where_and_by_which_command() -> None:
    silent = Section("never", "Never measured", "", "", {"a": "Anna"}, COLUMNS)
    late = run("a", at="2026-02-01T00:00:00+00:00", wall_s=1.0, lost=0)
    page = markdown(
        [*RUNS, late], [SECTION, silent], head="# Head", machine="a desk", about="How.", foot="Foot.", ours="b"
    )
    when = "Measured on 2026-01-02 to 2026-02-01: a desk."
    assert page.startswith(f"# Head\n\n{when}\n\nHow.\n\n## Steady\n\nAbout it.\n\n`make it`\n")
    assert "![Steady](s.svg)" in page
    assert "Never measured" not in page
    assert page.endswith("| a-package 1.0 | a |\n\nFoot.\n")


def test_who_is_better_than_the_best_of_ours() -> None:
    assert losses(RUNS, SECTION, "b") == ["* Steady. **wall, s**: Anna."]
    assert losses([*RUNS, run("b2", wall_s=0.5), run("c", wall_s=9.0)], SECTION, "b") == [
        "* Steady. **wall, s**: Anna."
    ]
    assert losses([*RUNS, run("b", wall_s=0.5), run("b", wall_s=0.5)], SECTION, "b") == []
    assert losses(RUNS, SECTION, "nobody") == []


def test_the_newest_versions_count_and_who_shares_them_shares_a_row() -> None:
    newer = run("a") | {"versions": {"a-package": "2.0"}}
    assert versions([run("a"), newer, newer | {"contender": "b"}]) == {"a-package 2.0": ["a", "b"]}
