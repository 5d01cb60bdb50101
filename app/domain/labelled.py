"""What a report shows of scores that are labels or checklist answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict


class QuestionShare(BaseModel):
    """One question of a checklist, and how many of `n` opinions answered it with yes."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    question: str
    yes: int
    n: int


class QuestionTally:
    """Counts the answers to one checklist."""

    def __init__(self, questions: Sequence[str]) -> None:
        self._questions = list(questions)
        self._yes, self._n = [0] * len(questions), 0

    def add(self, answers: Sequence[bool]) -> None:
        """Count one opinion's answers, in the order of the questions."""
        self._n += 1
        for place, is_yes in enumerate(answers[: len(self._yes)]):
            self._yes[place] += is_yes

    def shares(self) -> list[QuestionShare]:
        return [
            QuestionShare(question=question, yes=yes, n=self._n)
            for question, yes in zip(self._questions, self._yes, strict=True)
        ]


def label_counts(labels: Sequence[str], lowest: int, histogram: Mapping[int, int]) -> dict[str, int]:
    """Return how often each label was given, in their order; `lowest` is the first label's score."""
    return {label: histogram.get(score, 0) for score, label in enumerate(labels, lowest)}
