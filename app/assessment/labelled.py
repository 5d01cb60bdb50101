"""Statistics of labels and preferences: how common each label is, and how often A wins."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.rankings import rankings
from dicast.app.assessment.rivals import contestant_statistics
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.voices import NOBODY_RATED
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import LabelShare, PreferenceStatistics
from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.combining import combine_mean
from dicast.app.statistics.means import mean
from dicast.app.statistics.powered import Powered, powered_win_rate
from dicast.app.statistics.preferences import win_rate


def label_shares(dimension: DimensionScores) -> list[LabelShare]:
    """Return for each label the share of opinions that give it, and the share that people would give it; empty
    without labels."""
    if dimension.spec.kind != "labels":
        return []
    shares = []
    labels = dimension.labels[:, dimension.asked_everywhere]
    for score, label in enumerate(dimension.spec.labels, dimension.spec.scale_min):
        judged, people = _share_of(labels, score), _all_items(dimension, _share_of(dimension.people.scores, score))
        with_help = _powered(dimension, judged, people)
        shares.append(
            LabelShare(
                label=label,
                judges=figure(mean(judged, bounds=(0.0, 1.0))),
                people=_powered_figure(dimension, with_help, "both"),
                people_alone=_powered_figure(dimension, with_help, "people_alone"),
            )
        )
    return shares


def preferences(
    job: JobScores, dimension: DimensionScores, panel: Floats, raters: Mapping[str, Floats], rng: np.random.Generator
) -> PreferenceStatistics | None:
    """Return how often A is preferred, by the panel's scores (one an item), and how far all raters rank as people do.
    Returns None if scores are no preferences."""
    if dimension.spec.kind != "preference":
        return None
    wins = _choices(panel)
    people = _all_items(dimension, _of_rows(_choices(dimension.people.scores)))
    with_help = _powered(dimension, wins, people)
    standings = contestant_statistics(job, wins, rng)
    return PreferenceStatistics(
        wins=figure(win_rate(wins)),
        ties=figure(mean(np.where(np.isnan(wins), np.nan, wins == 0.5), bounds=(0.0, 1.0))),
        people=_powered_figure(dimension, with_help, "both"),
        people_alone=_powered_figure(dimension, with_help, "people_alone"),
        rates=standings.rates,
        meetings=standings.meetings,
        contestants=standings.contestants,
        rankings=list(rankings(job, dimension, raters)),
        reason=standings.reason,
    )


def _choices(scores: Floats) -> Floats:
    """Return 1 where A is preferred, 0 where B is, and 0.5 for a tie."""
    return np.sign(scores) / 2 + 0.5


def _share_of(scores: Floats, score: int) -> Floats:
    """Return for each row the share of its scores that equal this one, NaN for a row without any."""
    return _of_rows(np.where(np.isnan(scores), np.nan, scores == score))


def _of_rows(scores: Floats) -> Floats:
    return combine_mean(scores) if scores.shape[1] else np.full(len(scores), np.nan)


def _all_items(dimension: DimensionScores, of_rated: Floats) -> Floats:
    result = np.full(len(dimension.scores), np.nan)
    if dimension.people.raters:
        result[dimension.people.rated] = of_rated
    return result


def _powered(dimension: DimensionScores, judged: Floats, people: Floats) -> Powered | None:
    if not dimension.people.raters or dimension.people.flaw is not None:
        return None
    chances = dimension.people.chances(len(judged))
    return powered_win_rate(judged, people, probabilities=chances)


def _powered_figure(dimension: DimensionScores, powered: Powered | None, which: str) -> Figure:
    if powered is None:
        return Figure.unknown(dimension.people.flaw or NOBODY_RATED)
    return figure(getattr(powered, which))
