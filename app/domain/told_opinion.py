"""One opinion as it is shown to a panel's chief (see app/domain/chief.py)."""

from __future__ import annotations

from pydantic import Field

from dicast.app.domain.fields import Id, Strict


class VisibleOpinion(Strict):
    """What a chief is shown of one judge's opinion on an item; `said` is None for a judge without one."""

    round: int = Field(ge=0)
    criterion: Id
    judge: int = Field(ge=1, description="the judge's number among the others")
    said: str | None = None
    argument: str = ""

    @property
    def bytes(self) -> int:
        """The size of its texts in UTF-8."""
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in (self.said or "", self.argument))
