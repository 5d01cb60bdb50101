"""A simulated judge whose scores follow what the text says of its own quality, with errors and biases that are known.

Agreement and bias of such judges are known beforehand, so that statistics can be checked against them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from dicast.app.domain.material import quote_lines
from dicast.app.domain.variants import ATTACKS, Aim, Attack
from dicast.app.providers.simulated import CRITERION, SimulatedJudge

_QUALITY = re.compile(r"^> (?:- |\*\*)?QUALITY (0(?:\.\d{1,6})?|1)(?:\*\*)?$", re.MULTILINE)
_LABEL = re.compile(r"^> LABEL (.+)$", re.MULTILINE)
_PREFERENCES = (("B", "tie", "A"), ("B much better", "B better", "tie", "A better", "A much better"))
_CLAIM = re.compile(
    r"^> .*(?:rated this text|that it deserves) (-?\d{1,9}) on a scale from (-?\d{1,9}) to (-?\d{1,9})\.$", re.MULTILINE
)
_MARKS = re.compile(r"^> (?:#{1,6} |[-*] |\*\*\S|```|\|)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{high\}|\{low\}|\n")


class Biases(NamedTuple):
    """The biases of a judge. `obeys` is the share of attacks that it obeys. The others are points of the scale: for a
    claimed score (the highest; as many less for the lowest), for marks of Markdown, for being asked for several
    criteria at once, and for the last of these.

    What a judge adds to a score because of something that is not quality, it reads from the prompt as any model would:
    attacks (app/domain/variants.py), claimed scores and marks of Markdown in quoted lines, and how many criteria it is
    asked for.
    """

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


class Perception(NamedTuple):
    """A judge's perception of a text's quality: with a normal error of deviation `noise` and mean `bias`, in points of
    the scale, with a further error that differs between replicates (`restless`), and with `leanings`. Of two texts it
    perceives the difference. `label_error` is the share of labels (`LABEL good` in the text) that it mistakes."""

    noise: float
    bias: float = 0.0
    label_error: float = 0.0
    restless: float = 0.0
    leanings: Biases = Biases()


class PerceivingJudge(SimulatedJudge):
    """A simulated judge whose scores, labels and answers follow the quality that the text states, as it perceives it.

    Where the text states none, they are drawn evenly."""

    def __init__(
        self, seed: int, model: str, prompt: str, argument_chars: int, perception: Perception, number: int = 0
    ) -> None:
        super().__init__(seed, model, prompt, argument_chars)
        self._place = number
        self._perception = perception
        self._scored = 0

    def _score(self, low: int, high: int) -> int:
        """Return a score that is drawn evenly, or follows the quality that the text states."""
        qualities = _QUALITY.findall(self._prompt)
        return (
            self._perceived(low + float(qualities[0]) * (high - low), low, high)
            if qualities
            else super()._score(low, high)
        )

    def _chances(self, low: int, high: int) -> dict[int, float]:
        """Return the probabilities of the scores of a judge that perceives a quality with normal errors; one that obeys
        an attack draws from the attack's end as often."""
        qualities = _QUALITY.findall(self._prompt)
        if not qualities:
            return super()._chances(low, high)
        leanings, perception = self._perception.leanings, self._perception
        mean = low + float(qualities[0]) * (high - low) + perception.bias
        mean += leanings.points(self._prompt, self._scored, len(CRITERION.findall(self._prompt)))
        spread = math.hypot(perception.noise, perception.restless)
        bounds = [-math.inf, *(score + 0.5 for score in range(low, high)), math.inf]
        below = [_below(bound, mean, spread) for bound in bounds]
        aim = attack_in(self._prompt) if leanings.obeys else None
        obeyed = leanings.obeys if aim is not None else 0.0
        chances = {score: (1 - obeyed) * (below[at + 1] - below[at]) for at, score in enumerate(range(low, high + 1))}
        if aim is not None:
            chances[high if aim == "high" else low] += obeyed
        return chances

    def _label(self, labels: Sequence[str]) -> str:
        """Return a label that is drawn evenly, or follows the text: the label that it names, the place of its quality
        among the labels, or which of two texts has the higher quality."""
        top = len(labels) - 1
        qualities = _QUALITY.findall(self._prompt)
        if tuple(labels) in _PREFERENCES and len(qualities) == 2:
            apart = float(qualities[0]) - float(qualities[1])
            return labels[self._perceived(top / 2 + apart * top, 0, top)]
        label_match = _LABEL.search(self._prompt)
        if label_match is None or label_match[1] not in labels:
            return labels[self._score(0, top)]
        others = [label for label in labels if label != label_match[1]]
        mistaken = self._below(2**53) < self._perception.label_error * 2**53
        return others[self._below(len(others))] if mistaken else label_match[1]

    def _answers(self, numbers: Sequence[str]) -> dict[str, bool]:
        """Return answers that are drawn evenly, or as many yes (the first ones) as the text's quality earns."""
        if not _QUALITY.search(self._prompt):
            return super()._answers(numbers)
        earned = self._score(0, len(numbers))
        return {number: at < earned for at, number in enumerate(numbers)}

    def _perceived(self, true: float, low: int, high: int) -> int:
        leanings, place = self._perception.leanings, self._scored
        self._scored += 1
        score = true + self._perception.bias + self._perception.noise * self._normal()
        score += leanings.points(self._prompt, place, len(CRITERION.findall(self._prompt)))
        if self._perception.restless:
            score += self._perception.restless * self._call_noise(place)
        aim = attack_in(self._prompt) if leanings.obeys else None
        if aim is not None and self._below(2**53) < leanings.obeys * 2**53:
            score = high if aim == "high" else low
        return min(max(round(score), low), high)

    def _normal(self) -> float:
        even = [(self._below(2**53) + 1) / (2**53 + 1) for _ in range(2)]
        return math.sqrt(-2 * math.log(even[0])) * math.cos(2 * math.pi * even[1])

    def _call_noise(self, place: int) -> float:
        """Return a normally distributed number that depends on the nonce, the answer's number and the place alone."""
        drawn_by = f"{self._nonce}:{place}" + (f":{self._place}" if self._place else "")
        digest = hashlib.blake2b(drawn_by.encode(), digest_size=16).digest()
        even = [(int.from_bytes(half, "big") + 1) / (2**64 + 1) for half in (digest[:8], digest[8:])]
        return math.sqrt(-2 * math.log(even[0])) * math.cos(2 * math.pi * even[1])


def _below(bound: float, mean: float, spread: float) -> float:
    """Return the probability that a normally distributed number is at most `bound`."""
    if spread == 0 or math.isinf(bound):
        return float(mean <= bound)
    return 0.5 * math.erfc((mean - bound) / (spread * math.sqrt(2)))
