"""Labels and preferences: how common each label is, how often A wins, and who is the best of those compared."""

from __future__ import annotations

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.voices import NOBODY_RATED
from dicast.app.domain.judge_statistics import Contestant, Figure, LabelShare, PreferenceStatistics
from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.combining import combine_mean
from dicast.app.statistics.estimates import Unknown
from dicast.app.statistics.means import FEWEST, mean
from dicast.app.statistics.powered import Powered, powered_win_rate
from dicast.app.statistics.preferences import bradley_terry, win_rate

MOST_CONTESTANTS = 50
NOBODY_NAMED = "the job keeps no metadata candidate_a and candidate_b, or system_a and system_b, of its pairs"


def label_shares(of: DimensionScores) -> list[LabelShare]:
    """For each label the share of opinions that give it, and what people would give; none where there are no labels."""
    if of.dimension.kind != "labels":
        return []
    told = []
    given = of.labels[:, of.everywhere]
    for score, label in enumerate(of.dimension.labels, of.dimension.scale_min):
        judged, people = _share_of(given, score), _all_items(of, _share_of(of.people.scores, score))
        with_help = _powered(of, judged, people)
        told.append(
            LabelShare(
                label=label,
                judges=figure(mean(judged, bounds=(0.0, 1.0))),
                people=_told(of, with_help, "both"),
                people_alone=_told(of, with_help, "people_alone"),
            )
        )
    return told


def preferences(
    job: JobScores, of: DimensionScores, panel: Floats, rng: np.random.Generator
) -> PreferenceStatistics | None:
    """How often A is preferred, by the panel's scores (one an item); None where scores are no preferences."""
    if of.dimension.kind != "preference":
        return None
    wins = _choices(panel)
    people = _all_items(of, _of_rows(_choices(of.people.scores)))
    with_help = _powered(of, wins, people)
    contestants, reason = _contestants(job, wins, rng)
    return PreferenceStatistics(
        wins=figure(win_rate(wins)),
        ties=figure(mean(np.where(np.isnan(wins), np.nan, wins == 0.5), bounds=(0.0, 1.0))),
        people=_told(of, with_help, "both"),
        people_alone=_told(of, with_help, "people_alone"),
        contestants=contestants,
        reason=reason,
    )


def _choices(scores: Floats) -> Floats:
    """1 where A is preferred, 0 where B is, 0.5 for a tie."""
    return np.sign(scores) / 2 + 0.5


def _share_of(scores: Floats, score: int) -> Floats:
    """Of each row the share of its scores that are this one; NaN without any."""
    return _of_rows(np.where(np.isnan(scores), np.nan, scores == score))


def _of_rows(scores: Floats) -> Floats:
    return combine_mean(scores) if scores.shape[1] else np.full(len(scores), np.nan)


def _all_items(of: DimensionScores, of_rated: Floats) -> Floats:
    result = np.full(len(of.scores), np.nan)
    if of.people.raters:
        result[of.people.rated] = of_rated
    return result


def _powered(of: DimensionScores, judged: Floats, people: Floats) -> Powered | None:
    if not of.people.raters or of.people.flaw is not None:
        return None
    chances = of.people.chances(len(judged))
    return powered_win_rate(judged, people, probabilities=chances)


def _told(of: DimensionScores, found: Powered | None, which: str) -> Figure:
    if found is None:
        return Figure.unknown(of.people.flaw or NOBODY_RATED)
    return figure(getattr(found, which))


def _contestants(job: JobScores, wins: Floats, rng: np.random.Generator) -> tuple[list[Contestant], str | None]:
    """Whoever was compared, best first, and why nobody can be ranked."""
    if job.sides is None:
        return [], NOBODY_NAMED
    first, second = job.sides
    names = np.array(sorted({*first.names, *second.names}))
    if len(names) > MOST_CONTESTANTS:
        return [], f"{len(names)} were compared, and {MOST_CONTESTANTS} at most are ranked"
    known = (first.codes >= 0) & (second.codes >= 0) & ~np.isnan(wins)
    a = np.searchsorted(names, np.array([*first.names, ""])[first.codes[known]])
    b = np.searchsorted(names, np.array([*second.names, ""])[second.codes[known]])
    apart = a != b
    codes = np.array([f"{at:06d}" for at in range(len(names))])
    pieces = _pieces(job, len(names))[known][apart]
    found = bradley_terry(codes[a[apart]], codes[b[apart]], wins[known][apart], pieces, rng)
    if isinstance(found, Unknown):
        return [], found.reason
    told = [
        Contestant(name=str(names[int(code)]), strength=figure(strength), ranks=ranks.tolist())
        for code, strength, ranks in zip(found.names, found.strengths, found.ranks, strict=True)
    ]
    return sorted(told, key=lambda one: (-(one.strength.value or 0.0), one.name)), None


def _pieces(job: JobScores, contestants: int) -> Ints:
    """What the comparisons are clustered by: the lists that they are of, where these are many enough; else each is its
    own, and the answer is one on these very texts."""
    lists = job.lists
    many = lists is not None and len(np.unique(lists)) >= max(FEWEST, contestants)
    return lists if many and lists is not None else np.arange(job.items)
