"""Which panel of a job's judges is the cheapest that agrees enough with people?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dicast.app.assessment.assess import SEED
from dicast.app.assessment.combined import beside_chief
from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores
from dicast.app.assessment.voices import NO_MEAN, person
from dicast.app.domain.findings import PanelFront, PanelOption
from dicast.app.domain.judge_statistics import Figure
from dicast.app.statistics.estimates import Unknown
from dicast.app.statistics.panel_search import Measure, PanelChoice, search

SOME_ITEMS = "judged only where the judges before had not settled the outcome: choose from a job without `escalate`"


def panel_front(
    of: DimensionScores,
    judges: Sequence[str],
    costs: Sequence[float],
    *,
    largest: int,
    measure: Measure,
    reach: float | None = None,
) -> PanelFront:
    """The front of all panels of up to `largest` judges; `costs` are one a judge, an item. A chief is in none of them:
    its scores rest on the others'."""
    alone = beside_chief(judges, of)
    costs = [cost for cost, kept in zip(costs, alone, strict=True) if kept]
    judges = [name for name, kept in zip(judges, alone, strict=True) if kept]
    if of.dimension.nominal:
        return PanelFront(
            dimension=of.dimension.id, measure=measure, items=0, panels=0, front=[], person=Figure.unknown(NO_MEAN),
            reason=NO_MEAN,
        )  # fmt: skip
    if not of.everywhere.all():
        names = [name for name, everywhere in zip(judges, of.everywhere[alone], strict=True) if not everywhere]
        some = f"{' and '.join(names)} {SOME_ITEMS}"
        return PanelFront(
            dimension=of.dimension.id, measure=measure, items=0, panels=0, front=[], person=Figure.unknown(some),
            reason=some,
        )  # fmt: skip
    rng = np.random.default_rng(SEED)
    ceiling = person(of, rng)
    reached = getattr(ceiling, measure) if ceiling is not None else Figure.unknown("nobody has rated this dimension")
    people = of.people.means(len(of.scores))
    found = search(
        of.judges[:, alone], people, np.asarray(costs, dtype=np.float64), rng, largest=largest, measure=measure
    )
    if isinstance(found, Unknown):
        return PanelFront(
            dimension=of.dimension.id, measure=measure, items=0, panels=0, front=[], person=reached, reason=found.reason
        )
    enough = found.cheapest(reach) if reach is not None else None
    reason = enough.reason if isinstance(enough, Unknown) else None
    if not found.front:
        reason = "no panel agrees with people more than chance does"
    return PanelFront(
        dimension=of.dimension.id,
        measure=measure,
        items=found.items,
        panels=len(found.panels),
        front=[_option(choice, judges) for choice in found.front],
        person=reached,
        enough=_option(enough, judges) if isinstance(enough, PanelChoice) else None,
        reason=reason,
        tried=list(zip([panel.cost for panel in found.panels], found.apparent.tolist(), strict=True)),
    )


def _option(choice: PanelChoice, judges: Sequence[str]) -> PanelOption:
    return PanelOption(
        judges=[judges[at] for at in choice.panel.judges],
        combination=choice.panel.combination,
        cost=choice.panel.cost,
        agreement=figure(choice.agreement),
        apparent=choice.apparent,
    )
