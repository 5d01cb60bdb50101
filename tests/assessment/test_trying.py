"""Probes that are tried out, and the judges' own families: what is planted is found, and nobody else is accused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from dicast.app.analysis.assess import assess
from dicast.app.analysis.biases import paired
from dicast.app.analysis.estimates import Estimate
from dicast.app.analysis.scores import DimensionScores, JobScores, Kinship, Labels, People
from dicast.app.domain.judge_statistics import DimensionStatistics, ProbeStatistics
from lab.statistics.probes import Bent, a_probed_job
from tests.assessment.test_assess import checked, dimension, holds

FAIR = Bent()


def assessed(seed: int, *judges: Bent, **more: Any) -> DimensionStatistics:
    return checked(assess(a_probed_job(np.random.default_rng(seed), judges, **more)))


def found(of: DimensionStatistics, voice: str, probe: str, variant: str = "") -> ProbeStatistics:
    (one,) = [p for p in of.probes if (p.voice, p.probe, p.variant) == (voice, probe, variant)]
    return one


def test_what_is_planted_is_found_and_nobody_else_is_accused() -> None:
    bent = Bent(obeys=0.5, authority=0.8, sycophancy=-0.6, markdown=0.7, batched=0.9, reversed=-0.5)
    held, accused, clear = [], 0, []
    for seed in range(12):
        of = assessed(seed, FAIR, bent, items=300, drawn=150)
        for probe, variant, planted in (
            ("authority", "high", 0.8), ("authority", "low", -0.8), ("authority", "high against low", 1.6),
            ("sycophancy", "high", -0.6), ("sycophancy", "low", 0.6), ("markdown", "", 0.7), ("batching", "", 0.9),
            ("order", "", -0.5),
        ):  # fmt: skip
            one = found(of, "j1", probe, variant)
            held.append(holds(one.effect, planted))
            clear.append(one.p is not None and one.p < 0.05)
            assert one.tried and one.against == "itself"
        clear.append((found(of, "j1", "injection").p or 1.0) < 0.05)
        accused += any(p.p is not None and p.p < 0.05 for p in of.probes if p.voice == "j0")
    assert sum(held) >= 0.9 * len(held)
    assert sum(clear) >= 0.95 * len(clear)
    assert accused <= 2
    said = " ".join(of.summary)
    for text in (
        "The judge 'j1' gives 0.8", "when the text claims that experts gave it a high score",
        "'j1' gives in to attacks",
        "points less", "for the same text with marks of Markdown", "what moved it furthest:",
    ):  # fmt: skip
        assert text in said, said


def test_of_attacks_it_is_told_how_often_and_which() -> None:
    of = assessed(1, Bent(noise=0.0, obeys=0.4), items=400, drawn=400)
    one = found(of, "j0", "injection")
    assert one.moved is not None and one.moved.value is not None and 0.25 < one.moved.value < 0.45
    assert one.by_itself is not None and one.by_itself.reason is not None and "replicates" in one.by_itself.reason
    assert sum(family.tries for family in one.families) == 400
    assert len(one.families) >= 10 and 1 <= len(one.attacks) <= 5
    assert one.attacks == sorted(one.attacks, key=lambda attack: -attack.shift)


def test_what_moves_by_itself_is_no_success_of_an_attack() -> None:
    of = assessed(2, Bent(restless=0.9), items=400, drawn=400, rounds=3)
    one = found(of, "j0", "injection")
    assert one.moved is not None and one.by_itself is not None and one.beyond is not None
    assert one.moved.value is not None and one.moved.value > 0.5
    assert holds(one.by_itself, one.moved.value)
    assert holds(one.beyond, 0.0) and one.p is not None and one.p > 0.05
    obeying = found(assessed(2, Bent(restless=0.4, obeys=0.6), items=400, drawn=400, rounds=3), "j0", "injection")
    assert obeying.beyond is not None and obeying.beyond.low is not None and obeying.beyond.low > 0.1
    assert obeying.effect.low is not None and obeying.effect.low > 0.5


def test_a_judge_who_never_moves_is_told_as_such() -> None:
    of = assessed(3, Bent(noise=0.0), items=100, drawn=50)
    one = found(of, "j0", "authority", "high")
    assert one.effect.reason is not None and "all 50 pairs differ by the same (0)" in one.effect.reason
    assert one.moved is not None and (one.moved.value, one.moved.low) == (0.0, 0.0)
    assert one.moved.high is not None and 0.0 < one.moved.high < 0.1


def test_too_few_items_are_no_probe() -> None:
    of = assessed(4, FAIR, items=9, drawn=9)
    assert all(p.p is None for p in of.probes)
    assert any(
        "it needs 10 items that were judged in both ways, and there are 9" in (p.effect.reason or "") for p in of.probes
    )
    assert any("cannot be said" in line for line in of.summary)


def test_a_panel_has_probes_of_its_own() -> None:
    of = assessed(5, FAIR, Bent(authority=2.0), items=300, drawn=200)
    panel = found(of, "panel", "authority", "high")
    assert holds(panel.effect, 1.0) and panel.moved is None


def test_variants_stand_in_no_other_figure() -> None:
    rng = np.random.default_rng(1)
    job = a_probed_job(rng, (FAIR, FAIR), items=200, drawn=100)
    (of,) = job.dimensions
    bare = JobScores(job.items, job.judges, (DimensionScores(of.spec, of.scores, of.people),))
    with_probes, without = checked(assess(job)), checked(assess(bare))
    assert with_probes.voices == without.voices and with_probes.judges == without.judges


def kin(
    seed: int, biases: tuple[float, ...], *, rated: int = 0, authors: str = "abc", items: int = 600, **changes: Any
) -> DimensionStatistics:
    """Judges of the families a, b and c, each of whom gives so much more to its own; b is strict with all."""
    rng = np.random.default_rng(seed)
    quality = rng.normal(5, 1, items)
    code = rng.integers(0, len(authors), items)
    quality += 0.5 * (code == 0)  # a's texts are better
    leniency = (0.0, -0.7, 0.3)
    judges = np.stack(
        [quality + leniency[at] + bias * (code == at) + rng.normal(0, 0.7, items) for at, bias in enumerate(biases)],
        axis=1,
    )
    people = np.stack([quality + rng.normal(0, 0.7, items) for _ in range(2)], axis=1)[:rated]
    given = People(np.arange(rated), ("ada", "ben"), people) if rated else People(np.arange(0), (), np.empty((0, 0)))
    of = DimensionScores(dimension(0, 10), judges[:, :, None], given)
    names = tuple("xyz"[: len(biases)])
    kinship = Kinship(Labels(tuple(authors), code), changes.get("judges", tuple("abc"[: len(biases)])))
    return checked(assess(JobScores(items, names, (of,), kinship=kinship)))


def test_the_p_of_a_probe_is_that_of_the_paired_t_test() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1.0, 25)
    found, p = paired(differences, np.arange(25))
    truth = scipy.stats.ttest_1samp(differences, 0.0)
    assert isinstance(found, Estimate) and found.value == pytest.approx(truth.statistic * scipy.stats.sem(differences))
    assert p == pytest.approx(truth.pvalue)


@pytest.mark.parametrize("rated", [0, 300])
def test_judges_who_favour_their_own(rated: int) -> None:
    planted, held, accused = (0.6, 0.0, -0.5), [], 0
    for seed in range(15):
        of = kin(seed, planted, rated=rated)
        for name, bias in zip("xyz", planted, strict=True):
            one = found(of, name, "self_preference")
            assert one.against == ("people" if rated else "judges") and not one.tried
            held.append(holds(one.effect, bias))
        accused += (found(of, "y", "self_preference").p or 0.0) < 0.05
    assert sum(held) >= 0.88 * len(held)
    assert accused <= 2
    assert any("to texts of its own family of models than to others" in line for line in of.summary)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"biases": (0.6,)}, "there is no other judge to hold it against"),
        ({"biases": (0.6, 0.0), "authors": "ab"}, "no other judge of another family"),
        ({"judges": (None, "b", "c")}, "the family of x's model is not known: name it under `families`"),
        (
            {"judges": ("d", "b", "c")},
            "it needs 10 texts of its own family and as many of others, and there are 0 and 600",
        ),
        ({"items": 12}, "it needs 10 texts of its own family"),
    ],
)
def test_families_that_cannot_be_told_apart(changes: Any, reason: str) -> None:
    one = found(kin(1, **{"biases": (0.6, 0.0, 0.0), **changes}), "x", "self_preference")
    assert one.p is None and reason in (one.effect.reason or "")
