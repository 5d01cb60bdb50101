"""Finds the cheapest panel of a job's judges that agrees enough with people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dicast.app.assessment.assess import SEED
from dicast.app.assessment.combined import is_not_chief
from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores
from dicast.app.assessment.voices import NO_MEAN, person
from dicast.app.domain.figure import Figure
from dicast.app.domain.findings import PanelFront, PanelOption
from dicast.app.statistics.estimates import Unknown
from dicast.app.statistics.panel_search import Measure, PanelChoice, search

SOME_ITEMS = (
    "judged only where the judges before had not settled the outcome: choose from a job without `escalate`, or from "
    "one with a difference or an uncertainty that has an `audit`"
)


def panel_front(
    dimension: DimensionScores,
    judges: Sequence[str],
    costs: Sequence[float],
    *,
    largest: int,
    measure: Measure,
    reach: float | None = None,
) -> PanelFront:
    """Return the front of all panels of up to `largest` judges; `costs` has each judge's cost of an item.

    A chief is in none of them, since its scores rest on the others'. For an escalating panel, only the items of its
    audit are used, on which all judges were asked.
    """
    alone = is_not_chief(judges, dimension)
    costs = [cost for cost, included in zip(costs, alone, strict=True) if included]
    judges = [name for name, included in zip(judges, alone, strict=True) if included]
    if dimension.spec.nominal:
        return _no_front(dimension, measure, NO_MEAN)
    whole = dimension if dimension.asked_everywhere.all() else dimension.of_audit
    if whole is None:
        names = [
            name for name, everywhere in zip(judges, dimension.asked_everywhere[alone], strict=True) if not everywhere
        ]
        return _no_front(dimension, measure, f"{' and '.join(names)} {SOME_ITEMS}")
    rng = np.random.default_rng(SEED)
    ceiling = person(dimension, rng)
    reached = getattr(ceiling, measure) if ceiling is not None else Figure.unknown("nobody has rated this dimension")
    people = whole.people.means(len(whole.scores))
    result = search(
        whole.judges[:, alone], people, np.asarray(costs, dtype=np.float64), rng, largest=largest, measure=measure
    )
    audited = len(whole.scores) if whole is not dimension else 0
    if isinstance(result, Unknown):
        return _no_front(dimension, measure, result.reason).model_copy(update={"person": reached, "audited": audited})
    enough = result.cheapest(reach) if reach is not None else None
    reason = enough.reason if isinstance(enough, Unknown) else None
    if not result.front:
        reason = "no panel agrees with people more than chance does"
    return PanelFront(
        dimension=dimension.spec.id,
        measure=measure,
        items=result.items,
        panels=len(result.panels),
        front=[_option(choice, judges) for choice in result.front],
        person=reached,
        enough=_option(enough, judges) if isinstance(enough, PanelChoice) else None,
        reason=reason,
        audited=audited,
        tried=list(zip([panel.cost for panel in result.panels], result.apparent.tolist(), strict=True)),
    )


def _no_front(dimension: DimensionScores, measure: Measure, reason: str) -> PanelFront:
    return PanelFront(
        dimension=dimension.spec.id, measure=measure, items=0, panels=0, front=[], person=Figure.unknown(reason),
        reason=reason,
    )  # fmt: skip


def _option(choice: PanelChoice, judges: Sequence[str]) -> PanelOption:
    return PanelOption(
        judges=[judges[at] for at in choice.panel.judges],
        combination=choice.panel.combination,
        cost=choice.panel.cost,
        agreement=figure(choice.agreement),
        apparent=choice.apparent,
    )
