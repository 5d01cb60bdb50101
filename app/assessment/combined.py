"""One score an item from all judges, as the job combines them."""

from __future__ import annotations

import numpy as np

from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.combining import COMBINATIONS, weighted_mean


def panel_scores(job: JobScores, of: DimensionScores) -> Floats:
    """One score an item; NaN without any."""
    rule = of.dimension.panel
    if rule.combine == "weighted":
        return weighted_mean(of.judges, np.array([rule.weights[name] for name in job.judges]))
    return COMBINATIONS[rule.combine](of.judges)
