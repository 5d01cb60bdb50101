"""One opinion as a panel's chief is told of it (see app/domain/chief.py)."""

from __future__ import annotations

from pydantic import Field

from dicast.app.domain.fields import Id, Strict


class ToldOpinion(Strict):
    """What a chief is told of one judge's opinion on an item; `said` is None of a judge who has none."""

    round: int = Field(ge=0)
    criterion: Id
    judge: int = Field(ge=1, description="the judge's number among the others")
    said: str | None = None
    argument: str = ""

    @property
    def bytes(self) -> int:
        """Of its texts in UTF-8."""
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in (self.said or "", self.argument))
