"""Statistics of contestants that were compared in pairs: how often each wins, against whom, and which is the best.

Where comparisons are few or one-sided, the uncertainty is reported: shares of wins with Wilson's interval, and
strengths with a prior, with the reason why the comparisons alone rank nobody.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import JobScores
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import Contestant, Meeting, WinRate
from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.estimates import Unknown
from dicast.app.statistics.means import FEWEST
from dicast.app.statistics.preferences import bradley_terry, likely_strengths, share_of_wins, win_rate

MOST_CONTESTANTS = 50
MOST_MEETING = 20
"""With more contestants, the table of meetings is longer than anybody reads."""
NOBODY_NAMED = "the job keeps no metadata candidate_a and candidate_b, or system_a and system_b, of its pairs"


class ContestantStatistics(NamedTuple):
    """The fields of `PreferenceStatistics` with these names."""

    rates: list[WinRate]
    meetings: list[Meeting]
    contestants: list[Contestant]
    reason: str | None


class _Pairs(NamedTuple):
    """The pairs: who met whom (codes), whether the first won (ties count half), and the cluster of each pair."""

    names: list[str]
    a: Ints
    b: Ints
    wins: Floats
    piece: Ints


def contestant_statistics(job: JobScores, wins: Floats, rng: np.random.Generator) -> ContestantStatistics:
    """Compute the statistics from the panel's choices, one a pair: 1 where A wins, 0 where B does, 0.5 for a tie."""
    if job.sides is None:
        return ContestantStatistics([], [], [], NOBODY_NAMED)
    first, second = job.sides
    names = sorted({*first.names, *second.names})
    if len(names) > MOST_CONTESTANTS:
        return ContestantStatistics(
            [], [], [], f"{len(names)} were compared, and {MOST_CONTESTANTS} at most are ranked"
        )
    complete = (first.codes >= 0) & (second.codes >= 0) & ~np.isnan(wins)
    a = np.searchsorted(names, np.array([*first.names, ""])[first.codes[complete]])
    b = np.searchsorted(names, np.array([*second.names, ""])[second.codes[complete]])
    apart = a != b
    pairs = _Pairs(names, a[apart], b[apart], wins[complete][apart], _pieces(job, len(names))[complete][apart])
    contestants, reason = _ranked(pairs, rng)
    return ContestantStatistics(_rates(pairs), _meetings(pairs), contestants, reason)


def _rates(pairs: _Pairs) -> list[WinRate]:
    """Return each contestant's share of wins against all others, the best first."""
    ranked = []
    for code, name in enumerate(pairs.names):
        wins = np.concatenate([pairs.wins[pairs.a == code], 1 - pairs.wins[pairs.b == code]])
        piece = np.concatenate([pairs.piece[pairs.a == code], pairs.piece[pairs.b == code]])
        if len(wins):
            ranked.append((float(wins.mean()), WinRate(name=name, pairs=len(wins), wins=_share(wins, piece))))
    return [rate for _, rate in sorted(ranked, key=lambda entry: (-entry[0], entry[1].name))]


def _share(wins: Floats, piece: Ints) -> Figure:
    rate = win_rate(wins, piece)
    return figure(share_of_wins(wins) if isinstance(rate, Unknown) else rate)


def _meetings(pairs: _Pairs) -> list[Meeting]:
    if len(pairs.names) > MOST_MEETING:
        return []
    meetings = []
    for first, second in combinations(range(len(pairs.names)), 2):
        there, back = (pairs.a == first) & (pairs.b == second), (pairs.a == second) & (pairs.b == first)
        wins = np.concatenate([pairs.wins[there], 1 - pairs.wins[back]])
        piece = np.concatenate([pairs.piece[there], pairs.piece[back]])
        if len(wins):
            share = _share(wins, piece)
            meetings.append(Meeting(first=pairs.names[first], second=pairs.names[second], pairs=len(wins), wins=share))
    return meetings


def _ranked(pairs: _Pairs, rng: np.random.Generator) -> tuple[list[Contestant], str | None]:
    """Return the contestants, best first, and the reason if they could be ranked only with the help of a prior."""
    codes = np.array([f"{at:06d}" for at in range(len(pairs.names))])
    strengths = bradley_terry(codes[pairs.a], codes[pairs.b], pairs.wins, pairs.piece, rng)
    reason = strengths.reason if isinstance(strengths, Unknown) else None
    if isinstance(strengths, Unknown):
        strengths = likely_strengths(codes[pairs.a], codes[pairs.b], pairs.wins, rng)
    if isinstance(strengths, Unknown):
        return [], strengths.reason
    contestants = [
        Contestant(name=pairs.names[int(code)], strength=figure(strength), ranks=ranks.tolist())
        for code, strength, ranks in zip(strengths.names, strengths.strengths, strengths.ranks, strict=True)
    ]
    return sorted(contestants, key=lambda contestant: (-(contestant.strength.value or 0.0), contestant.name)), reason


def _pieces(job: JobScores, contestants: int) -> Ints:
    """Return the clusters of the comparisons: their lists, if there are enough of them. Otherwise each comparison is
    a cluster of its own, and the result holds for these very texts only."""
    lists = job.lists
    many = lists is not None and len(np.unique(lists)) >= max(FEWEST, contestants)
    return lists if many and lists is not None else np.arange(job.items)
