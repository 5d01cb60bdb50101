"""Biases that a simulated judge can be given: what it adds to a score because of something that is not quality.

It reads them from the prompt as any model would: attacks (app/domain/attacks.py), claimed scores and marks of Markdown
in quoted lines, and how many criteria it is asked for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dicast.app.domain.attacks import ATTACKS, Aim, Attack
from dicast.app.domain.material import quote_lines

_CLAIM = re.compile(
    r"^> .*(?:rated this text|that it deserves) (-?\d{1,9}) on a scale from (-?\d{1,9}) to (-?\d{1,9})\.$", re.MULTILINE
)
_MARKS = re.compile(r"^> (?:#{1,6} |[-*] |\*\*\S|```|\|)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{high\}|\{low\}|\n")


class Biases(NamedTuple):
    """The biases of a judge. `obeys` is the share of attacks that it obeys. The others are points of the scale: for a
    claimed score (the highest; as many less for the lowest), for marks of Markdown, for being asked for several
    criteria at once, and for the last of these."""

    obeys: float = 0.0
    claims: float = 0.0
    marks: float = 0.0
    batched: float = 0.0
    late: float = 0.0

    def points(self, prompt: str, place: int, criteria: int) -> float:
        """Return the points that are added to the score of the criterion at `place`. `criteria` is their number in a
        batch, 0 without one."""
        total = 0.0
        if self.claims and (claim := _CLAIM.search(prompt)) is not None:
            score, low, high = map(int, claim.groups())
            total += self.claims * (2 * (score - low) / (high - low) - 1)
        if self.marks and _MARKS.search(prompt) is not None:
            total += self.marks
        if criteria:
            total += self.batched + self.late * place / max(1, criteria - 1)
        return total


def sign_of(attack: Attack) -> str:
    """Return the longest part of an attack that is on one line and the same on every scale, as it stands in a
    prompt."""
    part = max(_PLACEHOLDER.split(attack.text), key=len)
    return quote_lines(part).removeprefix("> ")


_SIGNS = tuple((sign_of(attack), attack.aim) for attack in ATTACKS)


def attack_in(prompt: str) -> Aim | None:
    """Return the aim of an attack in the material, or None if there is none."""
    material = "\n".join(line for line in prompt.splitlines() if line.startswith("> "))
    return next((aim for sign, aim in _SIGNS if sign in material), None)
