"""A chief has been told what the others say: it says nothing of how far judges agree, and is held to people."""

from __future__ import annotations

import numpy as np

from dicast.app.analysis.assess import assess
from dicast.app.analysis.panels import panel_front
from dicast.app.domain.panel import PanelRule
from lab.statistics.simulated import RatingWorld
from tests.assessment.test_assess import a_job, checked, dimension, drawn

WORLD = RatingWorld()


def test_who_echoes_the_others_adds_no_agreement() -> None:
    scores, people = drawn(WORLD, items=300)
    echo = np.concatenate([scores, np.round(np.nanmean(scores, axis=1, keepdims=True))], axis=1)
    rule = dimension().model_copy(update={"panel": PanelRule(combine="chief", chief="j3")})
    without, found = (checked(assess(job)) for job in (a_job(scores, people), a_job(echo, people, scale=rule)))
    assert found.judges is not None and without.judges is not None
    assert (found.judges.raters, found.judges.alpha.value) == (3, without.judges.alpha.value)
    assert found.independent.value == without.independent.value
    by_name = {voice.name: voice for voice in found.voices}
    assert by_name["panel"].pearson.value == by_name["j3"].pearson.value
    assert by_name["j3"].pearson.value > by_name["j0"].pearson.value


def test_a_chief_is_in_no_panel_that_could_do_without_the_others() -> None:
    scores, people = drawn(WORLD, items=300)
    rule = dimension().model_copy(update={"panel": PanelRule(combine="chief", chief="j0")})
    (of,) = a_job(scores, people, scale=rule).dimensions
    front = panel_front(of, ["j0", "j1", "j2"], [1.0, 1.0, 1.0], largest=3, measure="pearson")
    assert front.front and all("j0" not in option.judges for option in front.front)
