"""What is found when two runs are compared, and when a panel is looked for, as plain data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.figure import Figure


class _Plain(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class JudgeShift(_Plain):
    """How far one judge's scores of a dimension moved from the first run to the second, over the items of both; `p` is
    corrected by Holm for all shifts. `only_first` and `only_second` count items with a score in one run alone."""

    dimension: str
    judge: str
    shift: Figure
    p: float | None
    only_first: int
    only_second: int


class MovedItem(_Plain):
    """One of the items that moved most, with what the judge said in each run."""

    item_id: str
    dimension: str
    judge: str
    first: float
    second: float
    first_argument: str = ""
    second_argument: str = ""


class RunsCompared(_Plain):
    """Two runs over the same items, paired by item, dimension and judge; `forced` names what differs between them, and
    `spared` the judges whom an escalating panel did not ask everywhere in one of them: their shifts are of the items
    that both runs asked them about, no sample of all."""

    first: str
    second: str
    shifts: list[JudgeShift]
    moved: list[MovedItem]
    forced: list[str] = []
    spared: list[str] = []

    @property
    def spared_told(self) -> str | None:
        """The same in a sentence."""
        if not self.spared:
            return None
        return (
            f"Not asked everywhere, for those before had decided: {', '.join(self.spared)}. How far they moved is told "
            "of the items that both runs asked them about, which are no sample of all."
        )


class PanelOption(_Plain):
    """A panel on the front: no cheaper one agrees as much. `agreement` is measured on items that had no say in choosing
    it, `apparent` on those that had."""

    judges: list[str]
    combination: str
    cost: float
    agreement: Figure
    apparent: float


class PanelFront(_Plain):
    """Which panel is the cheapest that is good enough, in one dimension. `person` is what a person reaches; `enough` is
    the cheapest panel that reaches what was wished for. `reason` says why there is none, or no front. Of an escalating
    panel, the `audited` items alone are looked at, on which all judges were asked."""

    dimension: str
    measure: Literal["pearson", "spearman"]
    items: int
    panels: int
    front: list[PanelOption]
    person: Figure
    enough: PanelOption | None = None
    reason: str | None = None
    audited: int = 0
    tried: list[tuple[float, float]] = Field(
        default_factory=list, exclude=True, description="cost and apparent agreement of all panels, for pictures"
    )


class NotCalibrated(_Plain):
    """Why there is no map from a judge's scores in a dimension to people's."""

    judge: str
    dimension: str
    reason: str
