"""Who wins of those that were compared two by two: against all others, against each other, and who is the best.

What few or one-sided comparisons leave open is told with its doubt: shares of wins by Wilson's interval, and strengths
with a prior, beside the reason why nobody can be ranked by the comparisons alone.
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
"""With more, the table of who meets whom is longer than anybody reads."""
NOBODY_NAMED = "the job keeps no metadata candidate_a and candidate_b, or system_a and system_b, of its pairs"


class Rivals(NamedTuple):
    """As in `PreferenceStatistics`."""

    rates: list[WinRate]
    meetings: list[Meeting]
    contestants: list[Contestant]
    reason: str | None


class _Pairs(NamedTuple):
    """Who met whom (codes), whether the first won (ties half), and what the pair is clustered by."""

    names: list[str]
    a: Ints
    b: Ints
    wins: Floats
    piece: Ints


def rivals(job: JobScores, wins: Floats, rng: np.random.Generator) -> Rivals:
    """By the panel's choices, one a pair: 1 where A wins, 0 where B does, 0.5 for a tie."""
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
    """Each one's share of wins against all others, the best first."""
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
    """Whoever was compared, best first; and why they are ranked with the help of a prior, if they are."""
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
    """What the comparisons are clustered by: the lists that they are of, where these are many enough; else each is its
    own, and the answer is one on these very texts."""
    lists = job.lists
    many = lists is not None and len(np.unique(lists)) >= max(FEWEST, contestants)
    return lists if many and lists is not None else np.arange(job.items)
