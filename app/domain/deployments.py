"""Chooses the deployment of a unit: the one with the best `success_rate / (1 + load)`.

Load is work in hand divided by the limit. A unit counts as soon as it is assigned, so that one deployment does not get
a whole page. Randomness comes in as numbers: it breaks ties, and sends a small share of units elsewhere, because a
deployment that gets no calls can never show that it has recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

EXPLORED = 0.05
"""The share of units that go to another deployment than the best one, if one has room."""
TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """The present state of one deployment. `in_hand` counts open calls and assigned units, `limit` is at least 1; a
    `broken` one makes no calls for now."""

    success_rate: float
    in_hand: float
    limit: int
    broken: bool = False

    @property
    def score(self) -> float:
        return self.success_rate / (1.0 + self.in_hand / self.limit)

    @property
    def has_room(self) -> bool:
        return self.in_hand < self.limit


class Choice(NamedTuple):
    """The index of the chosen deployment and its score at that moment; `elsewhere` tells that another one could have
    been chosen."""

    deployment: int
    score: float
    elsewhere: bool


def choose(candidates: Sequence[Candidate], draw: float) -> Choice:
    """Choose one of the candidates. `draw` is a random number in [0, 1).

    Rules: a broken one only if all are; in `EXPLORED` of the draws one of those with room that are not the best, if
    there is any; else the best, and among equals the one that the draw selects.
    """
    usable = [n for n, candidate in enumerate(candidates) if not candidate.broken] or list(range(len(candidates)))
    elsewhere = sum(not candidate.broken for candidate in candidates) > 1
    top = max(candidates[n].score for n in usable)
    best = [n for n in usable if candidates[n].score >= top - TIE]
    others = [n for n in usable if n not in best and candidates[n].has_room]
    if draw < EXPLORED and others:
        chosen = _drawn(others, draw / EXPLORED)
    else:
        chosen = _drawn(best, max(0.0, draw - EXPLORED) / (1.0 - EXPLORED))
    return Choice(chosen, candidates[chosen].score, elsewhere)


def assign(candidates: Sequence[Candidate], draws: Iterable[float]) -> list[Choice]:
    """Make a choice for each draw, in order; each choice counts for the next ones."""
    now, choices = list(candidates), []
    for draw in draws:
        choice = choose(now, draw)
        taken = now[choice.deployment]
        now[choice.deployment] = replace(taken, in_hand=taken.in_hand + 1)
        choices.append(choice)
    return choices


def _drawn(places: Sequence[int], draw: float) -> int:
    return places[min(len(places) - 1, int(draw * len(places)))]
