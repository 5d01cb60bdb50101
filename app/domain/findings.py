"""The results of comparing two runs and of searching for a panel, as plain data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.figure import Figure


class _Plain(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class JudgeShift(_Plain):
    """The shift of one judge's scores of a dimension from the first run to the second, over the items of both runs.

    `p` is corrected by Holm for all shifts. `only_first` and `only_second` count items that have a score in one run
    alone.
    """

    dimension: str
    judge: str
    shift: Figure
    p: float | None
    only_first: int
    only_second: int


class MovedItem(_Plain):
    """One of the items that moved most, with the judge's score and argument in each run."""

    item_id: str
    dimension: str
    judge: str
    first: float
    second: float
    first_argument: str = ""
    second_argument: str = ""


class RunsCompared(_Plain):
    """Two runs over the same items, paired by item, dimension and judge.

    `forced` names what differs between them, and `spared` the judges whom an escalating panel skipped for some items in
    one of the runs: their shifts cover only the items that both runs called them about, which are no sample of all
    items.
    """

    first: str
    second: str
    shifts: list[JudgeShift]
    moved: list[MovedItem]
    forced: list[str] = []
    spared: list[str] = []

    @property
    def skipped_sentence(self) -> str | None:
        """A sentence on the judges in `spared`, or None if there is none."""
        if not self.spared:
            return None
        return (
            "Not asked about all items, because earlier judges had settled the outcome: "
            f"{', '.join(self.spared)}. Their shifts cover only the items that both runs asked them about, which are "
            "no sample of all items."
        )


class PanelOption(_Plain):
    """A panel on the Pareto front: no cheaper one agrees as much. `agreement` is measured on items that had no part in
    choosing it, `apparent` on those that had."""

    judges: list[str]
    combination: str
    cost: float
    agreement: Figure
    apparent: float


class PanelFront(_Plain):
    """The cheapest panel that is good enough in one dimension.

    `person` is what a person reaches; `enough` is the cheapest panel that reaches the agreement asked for. `reason`
    says why there is none, or no front. For an escalating panel only the `audited` items count, about which all judges
    were called.
    """

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
    """The reason why there is no map from a judge's scores in a dimension to people's."""

    judge: str
    dimension: str
    reason: str
