"""What a report tells of its judges: planted agreement and bias are found, and what cannot be said says why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
    assert of.summary[0].startswith("These raters rated every judged item: their mean is ")
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


def test_clusters_count_in_every_figure_of_items() -> None:
    """Three alike texts of each question are one piece: nothing is told more exactly than by the questions."""
    scores, people = drawn(RatingWorld(), 200, 120)
    once = checked(assess(replace(a_job(scores, people), these=("raters",))))
    rated = np.repeat(3 * people.rated, 3) + np.tile(np.arange(3), len(people.rated))
    copied = People(rated, people.raters, np.repeat(people.scores, 3, axis=0))
    clusters = ("question", np.repeat(np.arange(200), 3))
    job = a_job(np.repeat(scores, 3, axis=0), copied, cluster=clusters)
    of = checked(assess(replace(job, these=("raters",))))
    pairs = [(of.judges, once.judges, "alpha"), (of.people, once.people, "alpha"), (of.person, once.person, "mean")]
    for after, before in zip(of.voices, once.voices, strict=True):
        pairs += [(after, before, name) for name in ("mean", "pearson", "bias", "lower_limit")]
        pairs += [(after.peoples_mean, before.peoples_mean, name) for name in ("powered", "people_alone")]
        assert after.bias_p == pytest.approx(before.bias_p, rel=1e-6)
    for after, before, name in pairs:
        assert _width(getattr(after, name)) == pytest.approx(_width(getattr(before, name)), rel=0.1), name
    assert _width(of.independent) == pytest.approx(_width(once.independent), rel=0.2)
    alone = checked(assess(replace(job, these=("raters", "clusters"))))
    assert _width(alone.voices[0].mean) < 0.8 * _width(of.voices[0].mean)
    assert "other clusters (question)" in of.population and "other clusters" not in alone.population


def test_raters_who_differ_leave_the_mean_of_raters_like_them_open() -> None:
    """One rater tells nothing of others, and the report says so."""
    scores, people = drawn(RatingWorld(), 600, 200)
    strict = replace(people, scores=people.scores + np.array([-0.4, 0.0, 0.5]))
    found = [checked(assess(a_job(scores, of))).voices[-1].peoples_mean for of in (people, strict)]
    alike, apart = found
    assert alike is not None and apart is not None and alike.of_these_raters is not None
    assert apart.raters_apart == pytest.approx(0.45, abs=0.1) and apart.of_these_raters is not None
    assert _width(apart.powered) > 3 * _width(apart.of_these_raters)
    assert _width(alike.powered) < 2 * _width(alike.of_these_raters)
    these = checked(assess(replace(a_job(scores, strict), these=("raters",))))
    alone = these.voices[-1].peoples_mean
    assert alone is not None and alone.of_these_raters is None and alone.powered.low == apart.of_these_raters.low
    assert these.summary[-1].endswith("and of these raters alone.")
    one = checked(assess(a_job(scores, replace(people, raters=("ada",), scores=people.scores[:, :1]))))
    assert "of this rater alone: one rater does not tell how far others differ" in one.summary[-1]


def test_of_these_very_items_only_what_is_not_rated_is_unknown() -> None:
    scores, people = drawn(RatingWorld(), 300, 240)
    job = replace(a_job(scores, people), these=("raters",))
    alike, these = (checked(assess(of)).voices[-1] for of in (job, replace(job, these=("items", "raters"))))
    assert these.mean.low == these.mean.value == these.mean.high and these.mean.method == "census"
    assert these.peoples_mean is not None and alike.peoples_mean is not None
    for name in ("powered", "people_alone"):
        after, before = getattr(these.peoples_mean, name), getattr(alike.peoples_mean, name)
        assert _width(after) < 0.6 * _width(before)
    everything = replace(a_job(*drawn(RatingWorld(), 200, 200)), these=("items", "raters"))
    whole = checked(assess(everything)).voices[-1].peoples_mean
    assert whole is not None and whole.powered.low == whole.powered.high and whole.powered.method == "census"


def test_a_judge_who_follows_people_worse_or_is_kinder_in_a_group_is_named() -> None:
    rng = np.random.default_rng(5)
    quality, group = rng.normal(3, 1, 600), np.arange(600) % 3
    people = quality[:, None] + 0.3 * rng.normal(size=(600, 2))
    judges = quality[:, None] + 0.5 * rng.normal(size=(600, 3))
    judges[group == 1, 0] = rng.normal(3, 1, (group == 1).sum())  # the first says nothing of b
    judges[group == 2, 1] += 0.6  # the second likes c
    spec = ReportDimension(id="clear", scale_min=1, scale_max=5)
    of = DimensionScores(spec, judges[:, :, None], People(np.arange(600), ("ada", "ben"), people))
    found = assess(JobScores(600, ("deaf", "fond", "fair"), (of,), {"by": Labels(("a", "b", "c"), group)}))
    agreement = {rater.voice: rater for rater in found.dimensions[0].groups[0].agreement}
    assert list(agreement) == ["deaf", "fond", "fair", "panel"]
    clear = {
        name: ((rater.pearson_p or 0) < 0.05, rater.bias_p is not None and rater.bias_p < 0.05)
        for name, rater in agreement.items()
    }
    assert clear["deaf"][0] and clear["fond"] == (False, True) and clear["fair"] == (False, False)
    lines = found.dimensions[0].summary
    assert any(line.startswith("deaf does not follow these raters equally well in all groups by by") for line in lines)
    assert any(line.startswith("fond favours some groups by by beside these raters: it gives c 0.") for line in lines)
    a = agreement["fair"].groups[0]
    plain = np.corrcoef(judges[group == 0, 2], people[group == 0].mean(axis=1))[0, 1]
    assert a.name == "a" and a.pearson.value == pytest.approx(plain) and holds(a.bias, 0)
    few = replace(of, people=People(np.arange(15), ("ada", "ben"), people[:15]))
    none = assess(JobScores(600, ("deaf", "fond", "fair"), (few,), {"by": Labels(("a", "b", "c"), group)}))
    assert none.dimensions[0].groups[0].agreement == []
