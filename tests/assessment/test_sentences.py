"""The report's sentences, whole: what they claim follows from the figures that they name, in every case."""

from __future__ import annotations

from typing import Any

import pytest

from dicast.app.analysis.assess import skipped_sentences
from dicast.app.analysis.biases import BOUNDED
from dicast.app.analysis.powered import ALL_RATED, TOO_FEW
from dicast.app.analysis.sentences import (
    calibration_sentences,
    difference_text,
    disagreement_sentences,
    label_sentences,
    panel_sentences,
    preference_sentences,
    probe_sentences,
    summary,
)
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import (
    AttackFound,
    CalibratedRater,
    Contestant,
    GroupDifference,
    GroupMean,
    GroupStatistics,
    LabelShare,
    PeoplesMean,
    PreferenceStatistics,
    ProbeStatistics,
    RankingAgreement,
    RaterAgreement,
    RaterStatistics,
    SampleCheck,
    WinRate,
)
from dicast.app.domain.panel import LearnedPanel, PanelRule
from dicast.app.domain.report import ReportDimension


def fig(value: float, low: float, high: float) -> Figure:
    return Figure(value=value, low=low, high=high, items=50, method="t")


WHY = Figure.unknown("only 2 items were rated")


def voice(name: str, kind: str = "judge", **changes: Any) -> RaterStatistics:
    figures = dict.fromkeys(("pearson", "spearman", "kendall", "kappa", "bias", "lower_limit", "upper_limit"), WHY)
    return RaterStatistics(name=name, kind=kind, **{  # type: ignore[arg-type]
        "base_rate": None, "confusion": None, "items": 50, "missing": 0.0, **figures, **changes,
    })  # fmt: skip


def told(*voices: RaterStatistics, person: RaterStatistics | None = None, **more: Any) -> list[str]:
    given: dict[str, Any] = {
        "person": person or voice("a person", "people"), "independent": WHY, "groups": [],
        "known_probabilities": False, **more,
    }  # fmt: skip
    return summary(voices, given.pop("person"), given.pop("independent"), given.pop("groups"), **given)


def means(powered: Figure, alone: Figure, saved: float | None, reason: str | None = None) -> RaterStatistics:
    found = PeoplesMean(powered=powered, people_alone=alone, judges_weight=1.0, saved=saved, saved_reason=reason)
    return voice("panel", "panel", peoples_mean=found)


# ------------------------------------------------------------------------------------------------------ people's mean
@pytest.mark.parametrize("saved, said", [
    (2.0, "With the judges' help, these ratings tell as much as 2.0 times as many would alone."),
    (1.05, "With the judges' help, these ratings tell as much as 1.1 times as many would alone."),
    (1.04, "The judges add nothing to what people's ratings tell."),
])  # fmt: skip
def test_what_people_would_have_said_and_what_the_judges_are_worth(saved: float, said: str) -> None:
    lines = told(means(fig(3.84, 3.75, 3.93), fig(3.8, 3.6, 4.0), saved))
    assert lines[:2] == [
        "These raters' mean of all items would be 3.84 (3.75 to 3.93). It holds if the rated items are a random sample "
        "of all items.",
        said,
    ]
    drawn = told(means(fig(3.84, 3.75, 3.93), fig(3.8, 3.6, 4.0), None), known_probabilities=True)
    assert drawn[0].endswith("the rated items are drawn with the given probabilities.") and "worth" not in drawn[1]


def test_a_mean_that_is_not_known_and_one_that_needs_no_judges() -> None:
    assert told(means(WHY, WHY, None))[0] == (
        "What people would have said of all items cannot be said, because only 2 items were rated."
    )
    whole = told(means(fig(3, 2, 4), fig(3.1, 2.1, 4.1), None, ALL_RATED))
    assert whole[0] == "These raters rated every judged item: their mean is 3.00 (2.00 to 4.00)."


def test_a_mean_of_few_ratings_is_told_without_the_judges() -> None:
    few = told(means(fig(3, 2, 4), fig(3, 2, 4), None, TOO_FEW))
    assert few[0].startswith(
        "These raters' mean of all items would be 3.00 (2.00 to 4.00), from their ratings alone: ratings"
    )
    assert not any("saved" in line or "worth" in line for line in few)


def test_ratings_of_chosen_items_are_told_first() -> None:
    checks = [
        SampleCheck(name="score", difference=fig(0.94, 0.85, 1.03), p=0.001),
        SampleCheck(name="distance", difference=fig(-0.2, -0.3, -0.1), p=0.04),
        SampleCheck(name="disagreement", difference=fig(0.1, 0, 0.2), p=0.05),
        SampleCheck(name="groups by system", p=0.01),
    ]
    lines = told(means(fig(3, 2, 4), fig(3, 2, 4), None), sample_checks=checks)
    assert lines[0] == (
        "The rated items are no random sample of all items: the judges give them 0.94 points more (0.85 to 1.03) than "
        "the unrated ones; the judges' scores of them lie 0.20 points less (0.10 to 0.30) from the middle than those "
        "of the unrated ones; they are spread over groups by system unlike all items. What is said of these raters' "
        "scores below holds for items like the rated ones alone."
    )
    assert lines[1].endswith("a random sample of all items, which they are seen not to be.")
    fair = told(means(fig(3, 2, 4), fig(3, 2, 4), None), sample_checks=checks[2:3])
    assert fair[0].endswith("a random sample of all items.")


# ---------------------------------------------------------------------------------------------------------- agreement
A, B = voice("a", pearson=fig(0.5, 0.4, 0.6)), voice("b", pearson=fig(0.8, 0.75, 0.85))


@pytest.mark.parametrize("person, said", [
    ((0.9, 0.86, 0.95), "b follows people less closely than one of them does"),
    ((0.9, 0.85, 0.95), "the two cannot be told apart"),
    ((0.7, 0.6, 0.75), "the two cannot be told apart"),
    ((0.7, 0.6, 0.74), "b follows people more closely than one of them does"),
])  # fmt: skip
def test_the_best_judge_stands_beside_a_person(person: tuple[float, float, float], said: str) -> None:
    one = voice("a person", "people", pearson=fig(*person))
    panel = voice("panel", "panel", pearson=fig(0.9, 0.9, 0.9))
    lines = told(A, B, panel, person=one, leader=("b", 0.01))
    assert lines[0] == "The judge who follows people best is b, with a correlation of 0.80 (0.75 to 0.85)."
    value, low, high = person
    assert lines[1] == f"A person reaches {value:.2f} ({low:.2f} to {high:.2f}) against the other people: {said}."
    assert told(B.model_copy(update={"audited": 9}))[0] == (
        "The judge b follows people, with a correlation of 0.80 (0.75 to 0.85), on the items of the audit."
    )


def test_no_judge_is_called_the_best_who_cannot_be_told_apart() -> None:
    one = voice("a person", "people", pearson=fig(0.7, 0.62, 0.74))
    for p in (0.05, None):
        lines = told(A, B, voice("panel", "panel"), person=one, leader=("b", p))
        assert lines[0].startswith("The correlations of the 2 judges with people are 0.50 to 0.80; none is clearly the")
        assert lines[1].endswith(
            "1 of the judges follow people more closely than one of them does, 1 less closely, 0 cannot be told apart "
            "from one."
        )
    alike = voice("c", pearson=fig(0.7, 0.6, 0.8)), voice("d", pearson=fig(0.69, 0.6, 0.8))
    assert "0 less closely, 2 cannot be told apart" in told(*alike, voice("panel", "panel"), person=one)[1]


def test_agreement_that_is_not_known_says_why_and_labels_have_kappas() -> None:
    assert told(voice("a"))[0] == (
        "How far the judges agree with people cannot be said, because only 2 items were rated."
    )
    one = voice("a", kappa=fig(0.4, 0.3, 0.5), base_rate=0.62)
    other = voice("b", kappa=fig(0.3, 0.2, 0.4), base_rate=0.1)
    assert told(other, one)[:2] == [
        "The judges' kappas with people are 0.30 to 0.40 (people's commonest label is 62 % of theirs); which judge is "
        "the best is not tested.",
        "A person against another person: kappa cannot be said, because only 2 items were rated.",
    ]
    assert told(one.model_copy(update={"base_rate": None}))[0] == (
        "The judge a agrees with people with a kappa of 0.40 (0.30 to 0.50)."
    )


# ------------------------------------------------------------------------------------------------------------- biases
@pytest.mark.parametrize("p, clear", [(0.049, True), (0.05, False), (0.8, False)])
@pytest.mark.parametrize("low, high", [(0.1, 0.5), (-0.5, -0.1)])
def test_a_bias_is_told_where_it_is_clear_of_chance(low: float, high: float, p: float, clear: bool) -> None:
    lines = told(voice("a", bias=fig((low + high) / 2, low, high), bias_p=p))
    nobody = "No judge is seen to be too strict or too kind for these raters."
    assert (nobody in lines) is not clear
    way = "above" if low + high > 0 else "below"
    assert (f"a scores {way} these raters, by 0.30 (0.10 to 0.50)." in lines) is clear


def test_biases_come_by_their_size_five_at_most_and_nothing_is_said_where_nothing_is_known() -> None:
    found = [voice(f"j{n}", bias=fig(n / 10, n / 10 - 0.05, n / 10 + 0.05), bias_p=0.001) for n in range(1, 7)]
    lines = [line for line in told(*found) if " scores " in line]
    assert [line.partition(" ")[0] for line in lines] == ["j6", "j5", "j4", "j3", "j2"]
    panel = told(voice("panel", "panel", bias=fig(-0.3, -0.4, -0.2), bias_p=0.001))
    assert "The panel scores below these raters, by 0.30 (0.20 to 0.40)." in panel
    assert not any("strict" in line for line in told(voice("a")))


def test_judges_are_counted_without_their_panel() -> None:
    voices = [voice("a"), voice("b"), voice("c"), voice("panel", "panel")]
    assert told(*voices, independent=fig(2.1, 1.5, 2.8))[-1] == (
        "The 3 judges err alike: they tell as much as 2.1 (1.5 to 2.8) independent ones."
    )
    assert told(*voices)[-1] == (
        "How many independent judges tell as much as these 3 cannot be said, because only 2 items were rated."
    )
    assert not any("independent" in line for line in told(voices[0], voices[-1]))
    assert not any("independent" in line for line in told(voices[0]))
    nobody = summary(voices, None, fig(2, 1, 3), [], known_probabilities=False)
    assert nobody == ["Nobody has rated this dimension: how far its judges can be trusted cannot be said."]


# ------------------------------------------------------------------------------------------------------------- groups
def pair(first: str, second: str, p: float | None, sign: int = 1) -> GroupDifference:
    known = WHY if p is None else fig(sign * 0.5, sign * 0.5 - 0.2, sign * 0.5 + 0.2)
    return GroupDifference(first=first, second=second, difference=known, p=p)


OF_ALL = "(p below 0.05, corrected by Holm for all claims of this report)"


def test_without_ratings_each_sentence_that_ranks_names_the_judges() -> None:
    ranked = [GroupMean(name=name, items=9, mean=WHY, ranks=ranks) for name, ranks in (("x", [0.9, 0.1]), ("y", [0.1]))]
    apart = [pair("x", "y", 0.049), pair("x", "z", 0.05), pair("x", "w", None), pair("y", "z", 0.001)]
    lines = told(voice("a"), groups=[
        GroupStatistics(by="model", means=ranked, differences=apart),
        GroupStatistics(by="day", reason="there is one day"),
        GroupStatistics(by="hour", means=[GroupMean(name="1", items=9, mean=WHY)]),
    ])  # fmt: skip
    assert lines[-3:] == [
        "By model, in the judges' opinion: x has the panel's highest mean, and is first by it with probability 0.90.",
        f"In the judges' opinion 2 of 3 differences by model are clear of chance {OF_ALL}.",
        "Groups by day cannot be compared, because there is one day.",
    ]


def test_with_ratings_people_come_first_and_the_judges_beside_them() -> None:
    def group(name: str, panel: float, people: float) -> GroupMean:
        ranks, of_people = [panel, 1 - panel], [people, 1 - people]
        return GroupMean(
            name=name, items=9, mean=WHY, people=fig(3, 2, 4), ranks=ranks, people_ranks=of_people
        )  # fmt: skip

    groups = GroupStatistics(
        by="model", means=[group("x", 0.9, 0.2), group("y", 0.1, 0.8)], differences=[pair("x", "y", 0.01)],
        people_differences=[pair("x", "y", 0.02, sign=-1)],
    )  # fmt: skip
    assert told(voice("a"), groups=[groups])[-5:] == [
        "By model, in these raters' opinion: y is likeliest to have the highest mean of all its items, with "
        "probability 0.80; its mean would be 3.00 (2.00 to 4.00).",
        f"In these raters' opinion 1 of 1 differences by model are clear of chance {OF_ALL}.",
        "Judges and these raters clearly differ in which is better by model: x and y.",
        "By model, in the judges' opinion: x has the panel's highest mean, and is first by it with probability 0.90.",
        f"In the judges' opinion 1 of 1 differences by model are clear of chance {OF_ALL}.",
    ]
    alike = groups.model_copy(update={"people_differences": [pair("x", "y", 0.02)]})
    assert not any("clearly differ" in line for line in told(voice("a"), groups=[alike]))
    few = groups.model_copy(update={"people_differences": [], "people_reason": "few rated"})
    assert told(voice("a"), groups=[few])[-3] == (
        "What people would say of the groups by model cannot be said, because few rated."
    )


@pytest.mark.parametrize(
    ("low", "high", "clear"), [(0.87, 2.08, True), (-2.08, -0.87, True), (-0.2, 0.9, False), (0.0, 0.9, False)]
)
def test_a_difference_that_a_job_asked_for_has_no_p_and_is_told_by_its_interval(
    low: float, high: float, clear: bool
) -> None:
    means = [GroupMean(name=name, items=9, mean=WHY, ranks=[0.5, 0.5]) for name in "xy"]
    asked = GroupDifference(first="x", second="y", difference=fig((low + high) / 2, low, high), p=None)
    other = GroupDifference(first="x", second="z", difference=fig(1, 0.5, 1.5), p=0.2)
    lines = told(voice("a"), groups=[GroupStatistics(by="model", means=means, differences=[asked])])
    word = "clear" if clear else "not clear"
    assert lines[-1] == (
        f"What the job's question asked, x less y, is {(low + high) / 2:.2f} ({low:.2f} to {high:.2f}) in the "
        f"judges' opinion: {word} of chance, however often one looked."
    )
    lines = told(voice("a"), groups=[GroupStatistics(by="model", means=means, differences=[asked, other])])
    assert lines[-1].startswith("In the judges' opinion 0 of 1 other differences by model are clear of chance")


# ----------------------------------------------------------------------------------------- calibration, panels, labels
def test_a_calibration_is_told_of_the_panel_or_the_one_judge() -> None:
    values = {"raw": fig(3, 2, 4), "calibrated": fig(2.5, 2.1, 2.9), "bias": WHY, "method": "isotonic"}
    one = CalibratedRater(name="a", kind="judge", learned_on=1200, differing=["prompt", "model"], **values)  # type: ignore[arg-type]
    whole = CalibratedRater(name="panel", kind="panel", learned_on=1200, differing=["model"], **values)  # type: ignore[arg-type]
    assert list(calibration_sentences([one, whole])) == [
        "Calibrated (isotonic, learned on 1,200 rated items), the panel's mean is 2.50 (2.10 to 2.90) instead of "
        "3.00 (2.00 to 4.00); that the map itself may err is not in this interval.",
        "The calibration was made with another prompt and another model, and is applied all the same.",
    ]
    same = one.model_copy(update={"differing": []})
    assert len(lines := list(calibration_sentences([same]))) == 1 and "a's mean is" in lines[0]
    unknown = one.model_copy(update={"calibrated": WHY})
    assert list(calibration_sentences([unknown])) == [
        "What a's mean is when calibrated cannot be said, because only 2 items were rated."
    ]
    assert list(calibration_sentences([])) == []


@pytest.mark.parametrize("learned, begins", [
    (None, None),
    (LearnedPanel(items=1200, prior=[0.5, 0.5]), "The panel's labels are the likeliest ones after Dawid and Skene, "),
    (LearnedPanel(items=4, weights={"a": 0.5}, reason="4 are few"), "The panel's weights are equal ones, because 4 "),
    (LearnedPanel(items=1200, weights={"a": 0.25, "b": 0.75}), "The panel's weights are learned from 1,200 r"),
])  # fmt: skip
def test_what_a_panel_has_learned(learned: LearnedPanel | None, begins: str | None) -> None:
    found = list(panel_sentences(ReportDimension(id="d", scale_min=1, scale_max=5, learned=learned)))
    assert not found if begins is None else len(found) == 1 and found[0].startswith(begins)


def test_labels_are_told_ten_at_most() -> None:
    def share(name: str, people: Figure) -> LabelShare:
        return LabelShare(label=name, judges=fig(0.5, 0.4, 0.6), people=people, people_alone=WHY)

    two = list(label_sentences([share("good", fig(0.2, 0.1, 0.3)), share("bad", WHY)]))
    assert two == [
        "'good' is 0.50 (0.40 to 0.60) of the judges' opinions; of people's it would be 0.20 (0.10 to 0.30).",
        "'bad' is 0.50 (0.40 to 0.60) of the judges' opinions.",
    ]
    many = [share(f"l{n}", WHY) for n in range(12)]
    assert list(label_sentences(many))[-1] == "The other 2 labels are in report.json."
    assert len(list(label_sentences(many[:10]))) == 10


# -------------------------------------------------------------------------------------------------------- preferences
def test_preferences_are_told_with_the_strongest_or_who_wins_most() -> None:
    def ranking(name: str, tau: Figure) -> RankingAgreement:
        return RankingAgreement(name=name, lists=5, pairs=20, tau=tau, agreeing=WHY)

    best = Contestant(name="x", strength=fig(1, 0.5, 1.5), ranks=[0.8, 0.2])
    found = PreferenceStatistics(
        wins=fig(0.6, 0.5, 0.7), ties=WHY, people=fig(0.5, 0.4, 0.6), people_alone=WHY, contestants=[best, best],
        rankings=[ranking("a", WHY), ranking("panel", fig(0.7, 0.6, 0.8)), ranking("a person", fig(0.5, 0.4, 0.6))],
    )  # fmt: skip
    assert list(preference_sentences(found)) == [
        "The panel prefers A in a share of 0.60 (0.50 to 0.70), ties counted half; "
        "people would in 0.50 (0.40 to 0.60).",
        "The panel orders the lists as people do with a Kendall's tau of 0.70 (0.60 to 0.80); "
        "a person against another reaches 0.50 (0.40 to 0.60).",
        "In the judges' opinion x is the strongest of 2 that were compared, with a strength of 1.00 (0.50 to 1.50) "
        "after Bradley and Terry, and is first with probability 0.80.",
    ]
    rates = [WinRate(name=name, pairs=pairs, wins=fig(0.6, 0.5, 0.7)) for name, pairs in (("x", 1200), ("y", 7))]
    weak = PreferenceStatistics(
        wins=fig(0.6, 0.5, 0.7), ties=WHY, people=WHY, people_alone=WHY, rates=rates, reason="some never met",
        rankings=[ranking("j", fig(0.7, 0.6, 0.8)), ranking("a person", WHY)],
    )  # fmt: skip
    assert list(preference_sentences(weak)) == [
        "The panel prefers A in a share of 0.60 (0.50 to 0.70), ties counted half.",
        "j orders the lists as people do with a Kendall's tau of 0.70 (0.60 to 0.80).",
        "Which of those compared is best cannot be said, because some never met.",
    ]
    assert list(preference_sentences(None)) == []


# --------------------------------------------------------------------------------------------------- escalation, probes
def test_judges_who_were_not_asked_everywhere_are_named() -> None:
    rule = PanelRule.model_validate({"combine": "mean", "escalate": {"difference": 1}})
    dimension = ReportDimension(id="d", scale_min=1, scale_max=5, panel=rule)
    one, two = voice("b", spared=700), voice("c", spared=800)
    lines = list(skipped_sentences(dimension, [voice("a"), one, two], 1000))
    assert lines[0].startswith("b and c were asked only where the judges before ")
    assert "(1,500 opinions on 1,000 items were not needed). What is told of judges rests on those who were" in lines[0]
    assert next(iter(skipped_sentences(dimension, [voice("a"), one], 1000))).startswith("b was asked only")
    assert "c rests on the 40 items of the audit alone" in next(
        iter(skipped_sentences(dimension, [one.model_copy(update={"audited": 40}), two], 9))
    )
    assert list(skipped_sentences(dimension, [voice("a")], 1000)) == []


def probe(name: str, effect: Figure, p: float | None, **more: Any) -> ProbeStatistics:
    return ProbeStatistics(probe=name, voice=more.pop("voice", "a"), effect=effect, p=p, **more)


def test_attacks_are_told_by_which_way_they_move_and_how_often() -> None:
    attack = [AttackFound(attack=f"x{n}", family="f", tries=5, shift=2 - n) for n in range(4)]
    lines = list(probe_sentences([
        probe("injection", fig(0.5, 0.2, 0.8), 0.01, moved=fig(0.24, 0.15, 0.38), by_itself=fig(0.1, 0, 0.2),
              attacks=attack),
        probe("injection", fig(-0.5, -0.8, -0.2), 0.01, voice="panel", moved=fig(0.0, 0.0, 0.1)),
    ]))  # fmt: skip
    assert lines == [
        "The judge 'a' gives in to attacks: they move its scores by 0.50 (0.20 to 0.80) points their way.",
        "The panel takes attacks amiss: they move its scores by -0.50 (-0.80 to -0.20) points, away from what they are "
        "after.",
        "The judge 'a' changed its score for 24 % (15 to 38) of the texts with an attack, and for 10 % (0 to 20) of "
        "those that were judged again as they are; what moved it furthest: x0 (+2.00), x1 (+1.00), x2 (+0.00).",
    ]
    assert list(probe_sentences([probe("injection", fig(0.1, -0.1, 0.3), 0.05, moved=WHY)])) == [
        "No judge is seen to be moved by attacks in the text."
    ]
    assert list(probe_sentences([probe("injection", WHY, None)])) == [
        "How far judges are moved by attacks in the text cannot be said, because only 2 items were rated."
    ]


def test_the_order_and_the_length_are_told() -> None:
    first = probe("position", fig(0.1, 0.05, 0.15), 0.001, first=fig(0.4, 0.3, 0.45), moved=fig(0.2, 0.1, 0.3))
    assert list(probe_sentences([first])) == [
        "The judge 'a' prefers the text that it is shown last: the first one wins in 40 % (30 to 45) of its "
        "judgements.",
        "The preference of 'a' turned with the order for 20 % (10 to 30) of the pairs; such a pair counts as a tie.",
    ]
    long = probe("verbosity", fig(0.3, 0.1, 0.5), 0.01, voice="panel")
    assert list(probe_sentences([long, probe("formatting", fig(0, -1, 1), 0.9)])) == [
        "The panel gives 0.30 points more (0.10 to 0.50) for a text twice as long than for another that these raters "
        "find as good: what goes with it may be the cause.",
    ]
    assert list(probe_sentences([probe("formatting", fig(0, -1, 1), 0.9)])) == [
        "No judge is seen to favour length or marks more than these raters do."
    ]
    unseen = fig(0, -1, 1).model_copy(update={"method": BOUNDED})
    assert list(probe_sentences([probe("verbosity", unseen, 1.0)])) == [
        "No judge is seen to favour length or marks more than these raters do.",
        "Few texts have two raters, so a rating's noise is unknown and a bias may be there unseen: let a second person "
        "rate 30 of the rated texts.",
    ]
    assert list(probe_sentences([probe("formatting", WHY, None)])) == [
        "Whether judges favour length or marks cannot be said, because only 2 items were rated."
    ]
    order = probe("order", fig(-0.3, -0.5, -0.1), 0.01)
    assert list(probe_sentences([order])) == [
        "The judge 'a' gives 0.30 points less (0.10 to 0.50) when the dimensions come in reverse order."
    ]


@pytest.mark.parametrize("effect, said", [
    (fig(0.8, 0.5, 1.1), "0.80 points more (0.50 to 1.10)"), (fig(-0.8, -1.1, -0.5), "0.80 points less (0.50 to 1.10)"),
])  # fmt: skip
def test_how_far_a_judge_is_moved_is_told_with_its_side(effect: Figure, said: str) -> None:
    assert difference_text(effect) == said


def test_raters_who_hardly_agree_with_each_other_are_warned_of() -> None:
    def people(high: float) -> RaterAgreement:
        return RaterAgreement(
            raters=3, alpha=fig(high - 0.1, high - 0.2, high), fleiss=WHY, icc_single=WHY, icc_mean=WHY,
            base_rate=None, items=9, missing=0.0,
        )  # fmt: skip

    (line,) = disagreement_sentences(people(0.16))
    assert line.startswith(
        "These raters hardly agree with each other, with an alpha of 0.06 (-0.04 to 0.16); below 0.667"
    )
    assert not list(disagreement_sentences(people(0.67))) and not list(disagreement_sentences(None))


def test_a_judge_of_pairs_favours_a_side_and_is_not_strict() -> None:
    off = voice("a", bias=fig(0.3, 0.1, 0.5), bias_p=0.01)
    assert "a favours A more than these raters, by 0.30 (0.10 to 0.50)." in told(off, preferences=True)
    even = voice("a", bias=fig(0.1, -0.1, 0.3), bias_p=0.5)
    assert "No judge is seen to favour A or B more than these raters do." in told(even, preferences=True)
    assert "No judge is seen to be too strict or too kind for these raters." in told(even)
