"""The errors of a job in bounded space: each kind with its reasons and examples."""

from __future__ import annotations

import re
from collections import Counter

from pydantic import BaseModel, ConfigDict

from dicast.app.domain.opinion import ErrorKind, EvaluationError

MAX_EXAMPLES = 20
MAX_REASONS = 20
EXAMPLES_A_REASON = 5
MAX_EXAMPLE_LENGTH = 500


class ErrorReason(BaseModel):
    """How many errors of a kind have the same message, and where the first one occurred."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    status_code: int | None
    message: str
    count: int
    judge: str
    criterion_id: str
    item_id: str

    @property
    def text(self) -> str:
        """The message, preceded by the HTTP status unless the message names it."""
        if self.status_code is None or re.search(rf"\bstatus {self.status_code}\b", self.message):
            return self.message
        return f"{self.status_code} {self.message}"


class ErrorGroup(BaseModel):
    """All errors of one kind, with messages cut to `MAX_EXAMPLE_LENGTH` characters.

    `reasons` are the distinct messages, most frequent first; beyond `MAX_REASONS`, those that came first are kept.
    `examples` are the first few, chosen so that each reason has some.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    kind: ErrorKind
    count: int
    examples: list[EvaluationError]
    reasons: list[ErrorReason] = []


class ErrorTally:
    """Gathers the errors of one kind in bounded memory."""

    def __init__(self) -> None:
        self.examples: list[EvaluationError] = []
        self._counts: Counter[tuple[int | None, str]] = Counter()
        self._first: dict[tuple[int | None, str], EvaluationError] = {}

    def add(self, error: EvaluationError) -> None:
        """Count one error."""
        error = error.model_copy(update={"message": error.message[:MAX_EXAMPLE_LENGTH]})
        reason = error.status_code, error.message
        if reason in self._counts or len(self._counts) < MAX_REASONS:
            self._counts[reason] += 1
            self._first.setdefault(reason, error)
        if len(self.examples) < MAX_EXAMPLES and self._counts[reason] <= EXAMPLES_A_REASON:
            self.examples.append(error)

    def reasons(self) -> list[ErrorReason]:
        """Return the reasons, most frequent first."""
        return [
            ErrorReason(
                status_code=status, message=message, count=count, judge=self._first[status, message].judge,
                criterion_id=self._first[status, message].criterion_id, item_id=self._first[status, message].item_id,
            )
            for (status, message), count in self._counts.most_common()
        ]  # fmt: skip
