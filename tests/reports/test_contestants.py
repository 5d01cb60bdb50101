"""The table of contestants in the HTML report has a column for each rank that is told, and no other."""

from __future__ import annotations

import pytest

from dicast.app.domain.judge_statistics import Contestant, PreferenceStatistics
from dicast.app.reports.html.outcomes import MOST_RANKS, _preference
from tests.assessment.test_sentences import WHY, fig


@pytest.mark.parametrize("ranks, columns", [(2, 2), (MOST_RANKS, MOST_RANKS), (MOST_RANKS + 3, MOST_RANKS)])
def test_as_many_columns_as_ranks(ranks: int, columns: int) -> None:
    best = [Contestant(name=f"c{n}", strength=fig(1, 0, 2), ranks=[1 / ranks] * ranks) for n in range(ranks)]
    found = PreferenceStatistics(wins=fig(0.6, 0.5, 0.7), ties=WHY, people=WHY, people_alone=WHY, contestants=best)
    shown = _preference("Better", found)
    assert shown["ranks"] == columns
    assert {len(row) for row in shown["contestants"]} == {2 + columns}
    nobody = PreferenceStatistics(wins=WHY, ties=WHY, people=WHY, people_alone=WHY, reason="they never met")
    assert (_preference("Better", nobody)["ranks"], _preference("Better", nobody)["reason"]) == (0, "they never met")
