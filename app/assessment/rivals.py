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


class Rivals(NamedTuple):
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


def rivals(job: JobScores, wins: Floats, rng: np.random.Generator) -> Rivals:
    """Compute the statistics from the panel's choices, one a pair: 1 where A wins, 0 where B does, 0.5 for a tie."""
    if job.sides is None:
        return Rivals([], [], [], NOBODY_NAMED)
    first, second = job.sides
    names = sorted({*first.names, *second.names})
    if len(names) > MOST_CONTESTANTS:
        return Rivals([], [], [], f"{len(names)} were compared, and {MOST_CONTESTANTS} at most are ranked")
    known = (first.codes >= 0) & (second.codes >= 0) & ~np.isnan(wins)
    a = np.searchsorted(names, np.array([*first.names, ""])[first.codes[known]])
    b = np.searchsorted(names, np.array([*second.names, ""])[second.codes[known]])
    apart = a != b
    pairs = _Pairs(names, a[apart], b[apart], wins[known][apart], _pieces(job, len(names))[known][apart])
    contestants, reason = _ranked(pairs, rng)
    return Rivals(_rates(pairs), _meetings(pairs), contestants, reason)


def _rates(pairs: _Pairs) -> list[WinRate]:
    """Return each contestant's share of wins against all others, the best first."""
    told = []
    for code, name in enumerate(pairs.names):
        own = np.concatenate([pairs.wins[pairs.a == code], 1 - pairs.wins[pairs.b == code]])
        piece = np.concatenate([pairs.piece[pairs.a == code], pairs.piece[pairs.b == code]])
        if len(own):
            told.append((float(own.mean()), WinRate(name=name, pairs=len(own), wins=_share(own, piece))))
    return [rate for _, rate in sorted(told, key=lambda one: (-one[0], one[1].name))]


def _share(wins: Floats, piece: Ints) -> Figure:
    found = win_rate(wins, piece)
    return figure(share_of_wins(wins) if isinstance(found, Unknown) else found)


def _meetings(pairs: _Pairs) -> list[Meeting]:
    if len(pairs.names) > MOST_MEETING:
        return []
    told = []
    for one, other in combinations(range(len(pairs.names)), 2):
        there, back = (pairs.a == one) & (pairs.b == other), (pairs.a == other) & (pairs.b == one)
        own = np.concatenate([pairs.wins[there], 1 - pairs.wins[back]])
        piece = np.concatenate([pairs.piece[there], pairs.piece[back]])
        if len(own):
            found = _share(own, piece)
            told.append(Meeting(first=pairs.names[one], second=pairs.names[other], pairs=len(own), wins=found))
    return told


def _ranked(pairs: _Pairs, rng: np.random.Generator) -> tuple[list[Contestant], str | None]:
    """Return the contestants, best first, and the reason if they could be ranked only with the help of a prior."""
    codes = np.array([f"{at:06d}" for at in range(len(pairs.names))])
    found = bradley_terry(codes[pairs.a], codes[pairs.b], pairs.wins, pairs.piece, rng)
    reason = found.reason if isinstance(found, Unknown) else None
    if isinstance(found, Unknown):
        found = likely_strengths(codes[pairs.a], codes[pairs.b], pairs.wins, rng)
    if isinstance(found, Unknown):
        return [], found.reason
    told = [
        Contestant(name=pairs.names[int(code)], strength=figure(strength), ranks=ranks.tolist())
        for code, strength, ranks in zip(found.names, found.strengths, found.ranks, strict=True)
    ]
    return sorted(told, key=lambda one: (-(one.strength.value or 0.0), one.name)), reason


def _pieces(job: JobScores, contestants: int) -> Ints:
    """Return the clusters of the comparisons: their lists, if there are enough of them. Otherwise each comparison is
    a cluster of its own, and the result holds for these very texts only."""
    lists = job.lists
    many = lists is not None and len(np.unique(lists)) >= max(FEWEST, contestants)
    return lists if many and lists is not None else np.arange(job.items)
