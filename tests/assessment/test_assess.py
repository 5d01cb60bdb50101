"""What a report tells of its judges: planted agreement and bias are found, and what cannot be said says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from dicast.app.analysis.assess import assess
from dicast.app.analysis.scores import DimensionScores, JobScores, Labels, People
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import DimensionStatistics, JobStatistics
from dicast.app.domain.report import ReportDimension
from lab.statistics import simulated
from lab.statistics.simulated import RatingWorld

ITEMS, RATED = 1200, 200


def dimension(low: int = 1, high: int = 5) -> ReportDimension:
    return ReportDimension(id="clear", scale_min=low, scale_max=high)


def a_job(scores: Any, people: People, *, groups: Any = None, cluster: Any = None, scale: Any = None) -> JobScores:
    of = DimensionScores(scale or dimension(), scores, people)
    names = tuple(f"j{n}" for n in range(scores.shape[1]))
    return JobScores(len(scores), names, (of,), groups or {}, cluster)


def drawn(world: RatingWorld, items: int = ITEMS, rated: int = RATED, seed: int = 1) -> tuple[Any, People]:
    rng = np.random.default_rng(seed)
    found = simulated.draw(world, items, rng)
    chosen = np.sort(rng.choice(items, rated, replace=False))
    return found.judges[:, :, None], People(chosen, ("ada", "ben", "cleo"), found.people[chosen])


def figures(found: BaseModel) -> Iterator[Figure]:
    for value in dict(found).values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Figure):
                yield one
            elif isinstance(one, BaseModel):
                yield from figures(one)


def checked(found: JobStatistics) -> DimensionStatistics:
    """Every figure has an interval or a reason, and the whole survives JSON."""
    assert JobStatistics.model_validate_json(found.model_dump_json()) == found
    for one in figures(found):
        if one.reason is None:
            assert one.value is not None and one.low is not None and one.high is not None
            assert one.low <= one.high and one.items > 0 and one.method
        else:
            assert one.value is one.low is one.high is None and one.reason
    (of,) = found.dimensions
    assert of.summary and all(line.endswith(".") for line in of.summary)
    assert "nan" not in " ".join(of.summary).lower()
    return of


def holds(found: Figure, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def test_where_people_rated_everything_their_mean_is_told() -> None:
    judges, people = drawn(RatingWorld(), 200, 200)
    of = checked(assess(a_job(judges.round(), people)))
    found = of.voices[-1].peoples_mean
    assert found is not None and found.powered.low == pytest.approx(found.people_alone.low) and found.saved is None
    assert of.summary[0].startswith("These raters rated every judged item: of items like these their mean is ")
    assert "saved" not in " ".join(of.summary)


def test_what_was_planted_is_found() -> None:
    """The truth is what a very large draw of the same world says; intervals of five small draws hold it."""
    world = RatingWorld(bias=(0.0, 0.5, -0.6))
    large, everybody = drawn(world, 40_000, 40_000, seed=7)
    truth = checked(assess(a_job(large, everybody)))
    mean, held = float(np.nanmean(everybody.scores)), []
    for seed in range(5):
        of = checked(assess(a_job(*drawn(world, seed=seed))))
        for voice, true in zip(of.voices, truth.voices, strict=True):
            for name in ("pearson", "spearman", "kendall", "bias", "lower_limit", "upper_limit"):
                held.append(holds(getattr(voice, name), getattr(true, name).value))
            assert voice.peoples_mean is not None
            held.append(holds(voice.peoples_mean.powered, mean))
    assert sum(held) >= 0.9 * len(held), "intervals of 95 %, and those of one draw are wrong together"


def test_a_report_tells_bias_and_ceiling_and_what_judges_save() -> None:
    of = checked(assess(a_job(*drawn(RatingWorld(bias=(0.0, 0.5, -0.6))))))
    assert [voice.kind for voice in of.voices] == ["judge", "judge", "judge", "panel"]
    assert (of.ratings, of.rated_items, of.raters) == (558, RATED, ["ada", "ben", "cleo"])
    found = of.voices[-1].peoples_mean
    assert found is not None and found.saved is not None and found.saved > 1.3
    assert _width(found.powered) < 0.9 * _width(found.people_alone)
    assert of.voices[1].bias.low > 0 > of.voices[2].bias.high  # type: ignore[operator]
    assert any("j1 scores above these raters" in line for line in of.summary)
    assert any("j2 scores below these raters" in line for line in of.summary)
    assert of.person is not None and of.person.pearson.is_known and of.independent.is_known
    assert of.people is not None and of.judges is not None


def _width(found: Figure) -> float:
    assert found.low is not None and found.high is not None
    return found.high - found.low


def test_the_same_scores_give_the_same_figures() -> None:
    job = a_job(*drawn(RatingWorld(), 300, 100))
    assert assess(job) == assess(job)


def test_without_ratings_the_report_says_what_it_cannot_know() -> None:
    scores, _ = drawn(RatingWorld(), 100, 50)
    found = assess(a_job(scores, People(np.empty(0, dtype=np.int64), (), np.empty((0, 0)))))
    of = checked(found)
    assert not found.rated and len(found.unknowable) == 4
    assert of.person is None and of.people is None and of.judges is not None
    assert all(not voice.pearson.is_known for voice in of.voices)
    assert "Nobody has rated this dimension" in of.summary[0]


def _one_rater() -> JobScores:
    scores, people = drawn(RatingWorld(missing=0.0), 100, 50)
    return a_job(scores, People(people.rated, ("ada",), people.scores[:, :1]))


def _all_equal() -> JobScores:
    scores, people = drawn(RatingWorld(), 100, 50)
    return a_job(np.full_like(scores, 4.0), People(people.rated, people.raters, np.full_like(people.scores, 4.0)))


def _two_items() -> JobScores:
    scores, people = drawn(RatingWorld(), 100, 2)
    return a_job(scores, people)


def _long_scale() -> JobScores:
    scores, people = drawn(RatingWorld(), 100, 50)
    return a_job(scores * 200, People(people.rated, people.raters, people.scores * 200), scale=dimension(0, 1000))


def _fractions() -> JobScores:
    scores, people = drawn(RatingWorld(), 100, 50)
    return a_job(scores, People(people.rated, people.raters, (people.scores + 0.5).clip(max=5)))


def _one_judge() -> JobScores:
    scores, people = drawn(RatingWorld(), 100, 50)
    return a_job(scores[:, :1], people)


def _silent_judge() -> JobScores:
    scores, people = drawn(RatingWorld(), 100, 50)
    scores[:, 0] = np.nan
    return a_job(scores, people)


def _flawed() -> JobScores:
    scores, people = drawn(RatingWorld(), 100, 50)
    return a_job(scores, People(people.rated, people.raters, people.scores, None, "an item has two probabilities"))


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (_one_rater(), "one person alone has rated this dimension"),
        (_all_equal(), "same score"),
        (_two_items(), "only 2 items"),
        (_long_scale(), "it counts levels, and a scale of 1001 has too many"),
        (_fractions(), "none of the scale's levels"),
        (_one_judge(), "there is only one judge"),
        (_silent_judge(), "only 0 items were scored by both"),
        (_flawed(), "an item has two probabilities"),
    ],
    ids=["one rater", "all equal", "two items", "long scale", "fractions", "one judge", "silent judge", "flawed"],
)
def test_what_cannot_be_said_says_why(job: JobScores, reason: str) -> None:
    """Never a number that means nothing, and never a warning from inside a library: warnings are errors here."""
    of = checked(assess(job))
    assert any(reason in (one.reason or "") for one in figures(of)), [one.reason for one in figures(of)]


def test_replicates_are_averaged_and_what_counts_levels_is_told_of_the_first() -> None:
    first, people = drawn(RatingWorld(), 300, 100)
    second = np.clip(first + np.random.default_rng(3).integers(-1, 2, first.shape), 1, 5)
    of = checked(assess(a_job(np.concatenate([first, second], axis=2), people)))
    alone = checked(assess(a_job(first, people)))
    assert of.voices[0].kappa.value == alone.voices[0].kappa.value
    assert of.voices[0].confusion == alone.voices[0].confusion
    assert of.voices[0].pearson.value != alone.voices[0].pearson.value
    repeats = of.voices[0].repeats
    assert repeats is not None and repeats.is_known and alone.voices[0].repeats is None


def test_groups_are_ranked_and_compared() -> None:
    """System b is planted half a point above the others; items of one question belong together."""
    rng = np.random.default_rng(2)
    quality = np.repeat(rng.normal(3, 0.7, 200), 3)
    system = np.tile(np.arange(3), 200)
    scores = np.clip(np.round(quality + 0.5 * (system == 1) + rng.normal(0, 0.5, 600)), 1, 5)[:, None, None]
    people = People(np.arange(0, 600, 4), ("ada",), np.clip(np.round(quality[::4, None]), 1, 5))
    labels = {"system": Labels(("a", "b", "c"), system)}
    clusters = ("question", np.repeat(np.arange(200), 3))
    of = checked(assess(a_job(scores, people, groups=labels, cluster=clusters)))
    (found,) = of.groups
    assert (found.by, found.cluster) == ("system", "question")
    best = found.means[0]
    assert best.name == "b" and best.ranks is not None and best.ranks[0] > 0.99
    assert [sum(mean.ranks or []) for mean in found.means] == pytest.approx([1, 1, 1])
    p = {(d.first, d.second): d.p for d in found.differences}
    assert p["a", "b"] < 0.001 and p["b", "c"] < 0.001 and p["a", "c"] > 0.05  # type: ignore[operator]
    apart = checked(assess(a_job(scores, people, groups=labels))).groups[0]
    assert all(mean.people is not None and mean.people.is_known for mean in (*found.means, *apart.means))
    assert [sum(mean.people_ranks or []) for mean in found.means] == pytest.approx([1, 1, 1])
    assert len(found.people_differences) == 3 and all(pair.p is not None for pair in found.people_differences)
    assert (best.people_ranks or [1.0])[0] < 0.9, "these raters do not favour b"
    width = [d.differences[0].difference.high - d.differences[0].difference.low for d in (found, apart)]  # type: ignore[operator]
    assert width[0] < width[1], "pairs of one question differ less"


def test_groups_that_cannot_be_compared() -> None:
    scores, people = drawn(RatingWorld(), 100, 50)
    for codes, names, reason in [
        (np.zeros(100, dtype=np.int64), ("a",), "only 1 of its values"),
        (np.arange(100), tuple(map(str, range(100))), "it has 100 values, and 20 at most"),
    ]:
        of = checked(assess(a_job(scores, people, groups={"x": Labels(names, codes)})))
        assert reason in (of.groups[0].reason or "")
