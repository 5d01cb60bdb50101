"""The statistics of a dimension in sentences that a sceptical reader can check against the figures.

`summary` writes all of them, the most important first; `probe_sentences` writes what the probes for biases have shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.analysis.biases import BOUNDED
from dicast.app.analysis.estimates import Ints
from dicast.app.analysis.powered import ALL_RATED, TOO_FEW
from dicast.app.analysis.scores import DimensionScores
from dicast.app.domain.figure import Figure, figure_text, share_text
from dicast.app.domain.judge_statistics import (
    EPSILONS,
    CalibratedRater,
    GroupDifference,
    GroupStatistics,
    LabelShare,
    PeoplesMean,
    PreferenceStatistics,
    ProbeStatistics,
    RaterAgreement,
    RaterStatistics,
    SampleCheck,
    VarianceComponents,
)
from dicast.app.domain.report import ReportDimension
from dicast.app.domain.text import counted, first_few, joined, percent


def difference_text(figure: Figure) -> str:
    """Format a known figure as `0.80 points more (0.50 to 1.10)`, or `less`."""
    assert figure.value is not None and figure.low is not None and figure.high is not None
    word, low, high = ("more", figure.low, figure.high) if figure.value > 0 else ("less", -figure.high, -figure.low)
    return f"{abs(figure.value):.2f} points {word} ({low:.2f} to {high:.2f})"


FAMILY = "p below 0.05, corrected by Holm for all claims of this report"
CLEAR = 0.05
"""Effects with a smaller p, after Holm's correction, are reported as clear."""
_OBSERVED = {"verbosity": "a text twice as long", "formatting": "a text with marks of Markdown"}
_WHERE = {
    ("authority", "high"): "when the text claims that experts gave it a high score",
    ("authority", "low"): "when the text claims that experts gave it a low score",
    ("authority", "high against low"): "when experts are claimed to have given a high score than when a low one",
    ("sycophancy", "high"): "when the author is sure of a high score",
    ("sycophancy", "low"): "when the author is sure of a low score",
    ("sycophancy", "high against low"): "when the author is sure of a high score than when of a low one",
    ("markdown", ""): "for the same text with marks of Markdown",
    ("batching", ""): "when the dimension is judged in one call with the others than alone",
    ("order", ""): "when the dimensions come in reverse order",
}
_SUBJECTS = {
    "self_preference": "a preference for its own family of models", "injection": "attacks in the text",
    "authority": "claims of experts", "sycophancy": "claims of the author", "markdown": "marks of Markdown",
    "batching": "one call for all dimensions", "order": "the order of the dimensions",
    "position": "the order in which two texts are shown",
}  # fmt: skip


def probe_sentences(probes: Sequence[ProbeStatistics]) -> Iterator[str]:
    """Yield the effects that are clear of chance, then what was looked for and not found, or is unknown."""
    yield from _of_ratings([probe for probe in probes if probe.probe in _OBSERVED])
    for name, subject in _SUBJECTS.items():
        matching = [probe for probe in probes if probe.probe == name]
        if not matching:
            continue
        clear = [probe for probe in matching if probe.p is not None and probe.p < CLEAR]
        for probe in clear:
            yield _clear(probe)
        if name == "injection":
            yield from _attacks(matching)
        if name == "position":
            yield from _turned(matching)
        if not clear and any(probe.p is not None for probe in matching):
            yield f"No judge is seen to be moved by {subject}."
        elif not clear:
            yield f"How far judges are moved by {subject} {figure_text(matching[0].effect)}."


def _of_ratings(probes: Sequence[ProbeStatistics]) -> Iterator[str]:
    clear = [probe for probe in probes if probe.p is not None and probe.p < CLEAR]
    for probe in clear:
        name = "The panel" if probe.voice == "panel" else probe.voice
        yield (
            f"{name} gives {difference_text(probe.effect)} for {_OBSERVED[probe.probe]} than for another that these "
            "raters find as good: what goes with it may be the cause."
        )
    if not clear and any(probe.p is not None for probe in probes):
        yield "No judge is seen to favour length or marks more than these raters do."
        if any(probe.effect.method == BOUNDED for probe in probes):
            yield (
                "Few texts have two raters, so a rating's noise is unknown and a bias may be there unseen: let a "
                f"second person rate {RATED_TWICE} of the rated texts."
            )
    elif probes and all(probe.p is None for probe in probes):
        yield f"Whether judges favour length or marks {figure_text(probes[0].effect)}."


RATED_TWICE = 30
"""With as many of 300 texts rated twice, half a point a doubling is found in four of five cases
(lab/statistics/length.py)."""


def _rater(probe: ProbeStatistics) -> str:
    return "The panel" if probe.voice == "panel" else f"The judge '{probe.voice}'"


def _clear(probe: ProbeStatistics) -> str:
    if probe.probe == "position":
        assert probe.first is not None
        return (
            f"{_rater(probe)} prefers the text that it is shown {_place(probe.first)}: the first one wins in "
            f"{share_text(probe.first)} of its judgements."
        )
    far = difference_text(probe.effect)
    match probe.probe:
        case "self_preference":
            than = "these raters do" if probe.against == "people" else "the other judges do"
            return (
                f"{_rater(probe)} gives {far} to texts of its own family of models than to others, beside what {than}: "
                "what goes with the family may be the cause."
            )
        case "injection" if (probe.effect.value or 0.0) > 0:
            return (
                f"{_rater(probe)} gives in to attacks: they move its scores by "
                f"{figure_text(probe.effect)} points their way."
            )
        case "injection":
            return (
                f"{_rater(probe)} takes attacks amiss: they move its scores by "
                f"{figure_text(probe.effect)} points, away from "
                "what they are after."
            )
    return f"{_rater(probe)} gives {far} {_WHERE[probe.probe, probe.variant]}."


def _place(first: Figure) -> str:
    return "first" if (first.value or 0.0) > 0.5 else "last"


def _turned(probes: Sequence[ProbeStatistics]) -> Iterator[str]:
    """Yield for each judge how often the order decided."""
    for probe in probes:
        if probe.voice == "panel" or probe.moved is None or not probe.moved.is_known or not probe.moved.value:
            continue
        line = f"The preference of '{probe.voice}' turned with the order for {share_text(probe.moved)} of the pairs"
        if probe.by_itself is not None and probe.by_itself.is_known:
            line += f", and for {share_text(probe.by_itself)} of those that were judged again as they are"
        yield f"{line}; such a pair counts as a tie."


def _attacks(probes: Sequence[ProbeStatistics]) -> Iterator[str]:
    """Yield for each judge whose scores moved how often they did, and by which attacks."""
    for probe in probes:
        if probe.moved is None or not probe.moved.is_known or not probe.moved.value:
            continue
        line = f"{_rater(probe)} changed its score for {share_text(probe.moved)} of the texts with an attack"
        if probe.by_itself is not None and probe.by_itself.is_known:
            line += f", and for {share_text(probe.by_itself)} of those that were judged again as they are"
        best = ", ".join(f"{entry.attack} ({entry.shift:+.2f})" for entry in probe.attacks[:3])
        yield line + (f"; what moved it furthest: {best}." if best else ".")


MOST_BIASES = 5
MOST_LABELS = 10
NAMED_MOST = 3
SAVES = 1.05
"""Judges that save a smaller factor of ratings are reported as saving none."""


def summary(
    raters: Sequence[RaterStatistics],
    person: RaterStatistics | None,
    independent: Figure,
    groups: Sequence[GroupStatistics],
    probes: Sequence[ProbeStatistics] = (),
    sample_checks: Sequence[SampleCheck] = (),
    *,
    leader: tuple[str, float | None] = ("", None),
    preferences: bool = False,
    known_probabilities: bool,
) -> list[str]:
    """Return the dimension in sentences, the most important first."""
    lines: list[str] = []
    if person is None:
        lines.append("Nobody has rated this dimension: how far its judges can be trusted cannot be said.")
    else:
        whole = raters[-1]
        unlike = list(_unlike(sample_checks))
        lines += unlike
        lines += _means(whole, known_probabilities=known_probabilities, unlike=bool(unlike))
        lines += _agreement(raters, person, leader)
        lines += _biases(raters, preferences=preferences)
        if len(raters) > 2:
            judges = len(raters) - 1
            lines.append(
                f"The {judges} judges err alike: they tell as much as {figure_text(independent, 1)} independent ones."
                if independent.is_known
                else f"How many independent judges tell as much as these {judges} {figure_text(independent)}."
            )
    lines += probe_sentences(probes)
    for group in groups:
        lines += _groups(group)
    return lines


_UNLIKE = {
    "score": "the judges give them {far} than the unrated ones",
    "distance": "the judges' scores of them lie {far} from the middle than those of the unrated ones",
    "disagreement": "judges lie {far} apart on them than on the unrated ones (standard deviation)",
}


def _unlike(checks: Sequence[SampleCheck]) -> Iterator[str]:
    """Yield in what the rated items are clearly no random sample of all."""
    finding_texts = []
    for check in checks:
        if not _is_clear(check.p):
            continue
        if check.difference is None:
            finding_texts.append(f"they are spread over {check.name} unlike all items")
        else:
            finding_texts.append(_UNLIKE[check.name].format(far=difference_text(check.difference)))
    if finding_texts:
        yield (
            f"The rated items are no random sample of all items: {'; '.join(finding_texts)}. What is said of these "
            "raters' scores below holds for items like the rated ones alone."
        )


def _means(whole: RaterStatistics, *, known_probabilities: bool, unlike: bool) -> Iterator[str]:
    means = whole.peoples_mean
    if means is None:
        return
    if not means.powered.is_known:
        yield f"What people would have said of all items {figure_text(means.powered)}."
        return
    of_these = means.of_these_raters or means.powered
    if means.saved_reason == ALL_RATED:
        yield f"These raters rated every judged item: their mean is {figure_text(of_these)}."
        yield from _of_raters_alike(means)
        return
    if means.saved_reason == TOO_FEW:
        yield (
            f"These raters' mean of all items would be {figure_text(of_these)}, from their ratings alone: "
            f"{TOO_FEW}. It holds if the rated items are a random sample of all items."
        )
        yield from _of_raters_alike(means)
        return
    drawn = "drawn with the given probabilities" if known_probabilities else "a random sample of all items"
    drawn += ", which they are seen not to be" if unlike else ""
    yield (
        f"These raters' mean of all items would be {figure_text(of_these)}. It holds if the rated items are {drawn}."
    )
    yield from _of_raters_alike(means)
    if means.saved is not None:
        yield (
            f"With the judges' help, these ratings tell as much as {means.saved:.1f} times as many would alone."
            if means.saved >= SAVES
            else "The judges add nothing to what people's ratings tell."
        )


def _of_raters_alike(means: PeoplesMean) -> Iterator[str]:
    if means.of_these_raters is not None and means.raters_apart is not None:
        yield (
            f"Of raters like these the mean would be {figure_text(means.powered)}, as their strictness differs by "
            f"{means.raters_apart:.2f} points (standard deviation)."
        )


def population_sentence(dimension: DimensionScores, cluster: tuple[str, Ints] | None) -> str:
    """Return which items, clusters and raters the intervals speak of."""
    these, raters = dimension.these, len(dimension.people.raters)
    items = "of these very items for means, and of items like these for all else" if "items" in these else ""
    items = items or f"of items {'like these' if cluster is None else f'of other clusters ({cluster[0]}), like these'}"
    if not raters:
        return f"Intervals speak {items}."
    if "raters" in these:
        return f"Intervals speak {items}, and of these raters alone."
    if raters == 1:
        return f"Intervals speak {items}, and of this rater alone: one rater does not tell how far others differ."
    return (
        f"Intervals speak {items}; those of people's means and shares speak of raters like these {raters}, agreement, "
        "biases and differences of groups of these raters alone."
    )


def _agreement(
    raters: Sequence[RaterStatistics], person: RaterStatistics, leader: tuple[str, float | None]
) -> Iterator[str]:
    judges = [rater for rater in raters if rater.kind == "judge"]
    if any(v.kappa.is_known and not v.pearson.is_known for v in judges):
        yield from _kappas(judges, person)
        return
    best = max((v for v in judges if v.pearson.is_known), key=lambda v: v.pearson.value or 0.0, default=None)
    if best is None:
        yield f"How far the judges agree with people {figure_text((judges or raters)[0].pearson)}."
        return
    if len(judges) > 1:
        leading = next((v for v in judges if v.name == leader[0] and v.pearson.is_known), None)
        if leading is None or not _is_clear(leader[1]):
            yield from _unranked(judges, person)
            return
        best = leading
    who = (
        f"The judge who follows people best is {best.name}"
        if len(judges) > 1
        else f"The judge {best.name} follows people"
    )
    where = ", on the items of the audit" if best.audited else ""
    yield f"{who}, with a correlation of {figure_text(best.pearson)}{where}."
    if person.pearson.is_known:
        yield f"A person reaches {figure_text(person.pearson)} against the other people: {_beside(best, person)}."
    else:
        yield f"What a person would reach {figure_text(person.pearson)}."


def _unranked(judges: Sequence[RaterStatistics], person: RaterStatistics) -> Iterator[str]:
    """Yield the agreement of judges of whom none is clearly the best: the highest of several owes it to chance, too."""
    correlated = [judge for judge in judges if judge.pearson.value is not None]
    values = [judge.pearson.value or 0.0 for judge in correlated]
    yield (
        f"The correlations of the {len(correlated)} judges with people are {min(values):.2f} to {max(values):.2f}; "
        f"none is clearly the best ({FAMILY})."
    )
    if not person.pearson.is_known:
        yield f"What a person would reach {figure_text(person.pearson)}."
        return
    beside = [_beside(judge, person) for judge in correlated]
    closer, further = (sum(word in text for text in beside) for word in (" more ", " less "))
    alike = len(correlated) - closer - further
    yield (
        f"A person reaches {figure_text(person.pearson)} against the other people: {closer} of the judges follow "
        f"people more closely than one of them does, {further} less closely, {alike} cannot be told apart "
        "from one."
    )


def _kappas(judges: Sequence[RaterStatistics], person: RaterStatistics) -> Iterator[str]:
    """Yield the agreement beyond chance, for labels without an order."""
    best = max((v for v in judges if v.kappa.is_known), key=lambda v: v.kappa.value or 0.0)
    rate = "" if best.base_rate is None else f" (people's commonest label is {percent(best.base_rate)} of theirs)"
    kappas = [v.kappa.value for v in judges if v.kappa.value is not None]
    if len(kappas) > 1:
        spread = f"{min(kappas):.2f} to {max(kappas):.2f}"
        yield f"The judges' kappas with people are {spread}{rate}; which judge is the best is not tested."
    else:
        yield f"The judge {best.name} agrees with people with a kappa of {figure_text(best.kappa)}{rate}."
    yield f"A person against another person: kappa {figure_text(person.kappa)}."
    shares = [rater.same for rater in judges if rater.same is not None and rater.same.value is not None]
    if shares and person.same is not None and person.same.is_known:
        low, high = min(share.value or 0.0 for share in shares), max(share.value or 0.0 for share in shares)
        span = share_text(shares[0]) if len(shares) == 1 else f"{percent(low)} to {percent(high)}"
        yield f"A person's label is a judge's in {span} of cases, and another person's in {share_text(person.same)}."


def _beside(best: RaterStatistics, person: RaterStatistics) -> str:
    """Compare a judge with a person, by whether their intervals overlap."""
    judge, other = best.pearson, person.pearson
    assert judge.low is not None and judge.high is not None and other.low is not None and other.high is not None
    if judge.low > other.high:
        return f"{best.name} follows people more closely than one of them does"
    if judge.high < other.low:
        return f"{best.name} follows people less closely than one of them does"
    return "the two cannot be told apart"


def _biases(raters: Sequence[RaterStatistics], *, preferences: bool) -> Iterator[str]:
    above, below = ("favours A more than", "favours A less than") if preferences else ("scores above", "scores below")
    tested = [rater for rater in raters if rater.bias.is_known and rater.bias_p is not None]
    off = [rater for rater in tested if _is_clear(rater.bias_p)]
    for rater in sorted(off, key=lambda v: -abs(v.bias.value or 0.0))[:MOST_BIASES]:
        value, low, high = rater.bias.value or 0.0, rater.bias.low or 0.0, rater.bias.high or 0.0
        ends = (low, high) if value > 0 else (-high, -low)
        far = f"{abs(value):.2f} ({ends[0]:.2f} to {ends[1]:.2f})"
        name = "The panel" if rater.kind == "panel" else rater.name
        yield f"{name} {above if value > 0 else below} these raters, by {far}."
    if tested and not off:
        side = (
            "favour A or B more than these raters do" if preferences else "be too strict or too kind for these raters"
        )
        yield f"No judge is seen to {side}."


def missing_sentences(whole: RaterStatistics, groups: Sequence[GroupStatistics]) -> Iterator[str]:
    """Yield what judgements without a score could change, at worst and at best."""
    worst = whole.worst_case
    if worst is None:
        return
    whose = "the panel's" if whole.kind == "panel" else f"{whole.name}'s"
    line = (
        f"{counted(worst.missing, 'judgement')} {'has' if worst.missing == 1 else 'have'} no score. Had each been the "
        f"lowest or the highest there is, {whose} mean of {whole.mean.value:.2f} would be {worst.low:.2f} to "
        f"{worst.high:.2f}"
    )
    people = whole.peoples_mean
    if people is not None and people.worst_case is not None:
        line += f", and people's of {people.powered.value:.2f}, {people.worst_case.low:.2f} to "
        line += f"{people.worst_case.high:.2f}"
    yield line + "."
    for group in groups:
        for opinion, pairs in (("these raters'", group.people_differences), ("the judges'", group.differences)):
            hanging = [pair for pair in pairs if _is_clear(pair.p) and pair.hangs_on_missing]
            names = [f"{pair.first} and {pair.second}" for pair in hanging]
            if names:
                yield (
                    f"By {group.by}, in {opinion} opinion, {_clear_of(pairs)} are clear, but "
                    f"{len(names)} of them would not be if the judgements without a score had gone the other way: "
                    f"{first_few(names, NAMED_MOST)}."
                )


_PEOPLE_OF = {0.1: "crowd workers", 0.15: "skilled people", 0.2: "experts"}


def replacement_sentences(raters: Sequence[RaterStatistics]) -> Iterator[str]:
    """Yield whether each judge may replace one of the people, or why that cannot be said."""
    tests = [(rater, rater.replaces) for rater in raters if rater.replaces is not None]
    tested = [(rater, test) for rater, test in tests if test.winning_rates]
    if tests and not tested:
        yield f"Whether a judge may replace one of these raters {figure_text(tests[0][1].advantage)}."
    for rater, test in tested:
        name, epsilon = "The panel" if rater.kind == "panel" else rater.name, test.passed
        close = (
            f"it is as close to the others as one of them, or closer, with probability {figure_text(test.advantage)}"
        )
        if epsilon is None:
            rate = f"even with epsilon {EPSILONS[-1]:g} its winning rate is {test.winning_rates[-1]:.2f}"
            yield f"{name} is not shown to be fit to replace one of these raters: {rate}; {close}."
            continue
        rate = f"winning rate {test.winning_rates[EPSILONS.index(epsilon)]:.2f} with epsilon {epsilon:g}"
        yield (
            f"{name} may replace one of these raters by the alternative annotator test ({rate}, as for "
            f"{_PEOPLE_OF[epsilon]}): {close}."
        )


LEAST_ALPHA = 0.667
"""Below this alpha, ratings bear no conclusions, not even tentative ones (K. Krippendorff, "Content Analysis" (2004),
section 11.4)."""


def disagreement_sentences(people: RaterAgreement | None) -> Iterator[str]:
    """Yield a warning if people clearly agree too little among themselves to be a measure for judges."""
    if people is not None and people.alpha.high is not None and people.alpha.high < LEAST_ALPHA:
        yield (
            f"These raters hardly agree with each other, with an alpha of {figure_text(people.alpha)}; below "
            f"{LEAST_ALPHA:g}, ratings bear no conclusions: how far judges agree with them tells little of the judges."
        )


def _is_clear(p: float | None) -> bool:
    return p is not None and p < CLEAR


def _groups(group: GroupStatistics) -> Iterator[str]:
    """Yield what people would say of the groups, if that is known, and then what the judges say of them."""
    if group.reason is not None:
        yield f"Groups by {group.by} cannot be compared, because {group.reason}."
        return
    yield from _groups_of_people(group)
    yield from _unequal_agreement(group)
    first, open_differences = (
        group.means[0],
        [pair for pair in group.differences if pair.p is None and pair.difference.is_known],
    )
    if first.ranks is not None:
        yield (
            f"By {group.by}, in the judges' opinion: {first.name} has the panel's highest mean, and is first by it "
            f"with probability {first.ranks[0]:.2f}."
        )
    for pair in open_differences:
        yield _asked(pair)
    others = [pair for pair in group.differences if pair.p is not None]
    if others:
        count = _clear_of(others, "other " if open_differences else "")
        yield f"In the judges' opinion {count} by {group.by} are clear of chance ({FAMILY})."


def _unequal_agreement(group: GroupStatistics) -> Iterator[str]:
    """Yield which raters follow people better in some groups than in others, or favour some groups."""
    for rater in group.agreement:
        name = "The panel" if rater.voice == "panel" else rater.voice
        if _is_clear(rater.pearson_p):
            ranked = sorted(rater.groups, key=lambda one: -(one.pearson.value or 0.0))
            best, worst = ranked[0], ranked[-1]
            yield (
                f"{name} does not follow these raters equally well in all groups by {group.by}: with a correlation of "
                f"{figure_text(best.pearson)} in {best.name}, and of {figure_text(worst.pearson)} in {worst.name}."
            )
        if _is_clear(rater.bias_p):
            off = sorted(rater.groups, key=lambda one: -(one.bias.value or 0.0))
            yield (
                f"{name} favours some groups by {group.by} beside these raters: it gives {off[0].name} "
                f"{difference_text(off[0].bias)} than they do, and {off[-1].name} {difference_text(off[-1].bias)}."
            )
    tested = [p for rater in group.agreement for p in (rater.pearson_p, rater.bias_p) if p is not None]
    if tested and not any(map(_is_clear, tested)):
        yield f"No judge is seen to follow these raters better, or to favour a group, by {group.by}."


def _groups_of_people(group: GroupStatistics) -> Iterator[str]:
    tested = [pair for pair in group.people_differences if pair.p is not None]
    if not tested:
        if group.people_reason is not None:
            yield f"What people would say of the groups by {group.by} cannot be said, because {group.people_reason}."
        return
    best = max(group.means, key=lambda mean: (mean.people_ranks or [0.0])[0])
    if best.people_ranks is not None and best.people is not None:
        yield (
            f"By {group.by}, in these raters' opinion: {best.name} is likeliest to have the highest mean of all its "
            f"items, with probability {best.people_ranks[0]:.2f}; its mean would be {figure_text(best.people)}."
        )
    clear = [pair for pair in tested if _is_clear(pair.p)]
    yield f"In these raters' opinion {_clear_of(tested)} by {group.by} are clear of chance ({FAMILY})."
    against = [pair for pair in group.differences if _is_clear(pair.p) and _is_opposed(pair, clear)]
    if against:
        names = ", ".join(f"{pair.first} and {pair.second}" for pair in against[:NAMED_MOST])
        yield f"Judges and these raters clearly differ in which is better by {group.by}: {names}."


def _clear_of(pairs: Sequence[GroupDifference], other: str = "") -> str:
    return f"{sum(_is_clear(pair.p) for pair in pairs)} of {len(pairs)} {other}differences"


def _is_opposed(pair: GroupDifference, others: Sequence[GroupDifference]) -> bool:
    """Return whether one of `others` is of the same two groups, and has the other sign."""
    return any(
        (other.first, other.second) == (pair.first, pair.second)
        and (other.difference.value or 0.0) * (pair.difference.value or 0.0) < 0
        for other in others
    )


def _asked(pair: GroupDifference) -> str:
    """Tell the difference that a question asked for; it has no p, and its interval holds however often one looked."""
    low, high = pair.difference.low, pair.difference.high
    assert low is not None and high is not None
    clear = "clear of chance" if low > 0 or high < 0 else "not clear of chance"
    return (
        f"What the job's question asked, {pair.first} less {pair.second}, is {figure_text(pair.difference)} in the "
        f"judges' opinion: {clear}, however often one looked."
    )


def calibration_sentences(raters: Sequence[CalibratedRater]) -> Iterator[str]:
    """Yield the calibrated mean of the panel, or of the only judge."""
    if not raters:
        return
    whole = raters[-1]
    name = "the panel" if whole.kind == "panel" else whole.name
    if not whole.calibrated.is_known:
        yield f"What {name}'s mean is when calibrated {figure_text(whole.calibrated)}."
        return
    yield (
        f"Calibrated ({whole.method}, learned on {whole.learned_on:,} rated items), {name}'s mean is "
        f"{figure_text(whole.calibrated)} instead of {figure_text(whole.raw)}; "
        + (
            "that the map may err is in this interval, which speaks of the people whom it was learned from."
            if whole.map_counts
            else "that the map itself may err is not in this interval."
        )
    )
    differing = list(dict.fromkeys(part for rater in raters for part in rater.differing))
    if differing:
        yield f"The calibration was made with another {' and another '.join(differing)}, and is applied all the same."


def panel_sentences(dimension: ReportDimension) -> Iterator[str]:
    """Yield what the panel's rule has learned."""
    panel = dimension.learned
    if panel is None:
        return
    if panel.prior:
        yield (
            f"The panel's labels are the likeliest ones after Dawid and Skene, from {panel.items:,} items: judges' "
            "errors are taken for independent, so what all of them get wrong in the same way counts as right."
        )
    elif panel.reason is not None:
        yield f"The panel's weights are equal ones, because {panel.reason}."
    else:
        weights = ", ".join(f"{name} {weight:.2f}" for name, weight in panel.weights.items())
        yield (
            f"The panel's weights are learned from {panel.items:,} rated items ({weights}); each of these is combined "
            "by the weights of the half that it is not in. They have no interval: what they are worth is in the "
            "panel's agreement with people."
        )


def component_sentences(components: Sequence[VarianceComponents]) -> Iterator[str]:
    """Yield how much of the variance of the judges' scores lies between items, and what more judges would buy."""
    judges = next((entry for entry in components if entry.of == "judges"), None)
    if judges is None or judges.reason is not None:
        return
    largest = sorted(judges.components, key=lambda part: -part.share)
    shares = ", ".join(f"{percent(part.share)} {part.source}" for part in largest if part.share >= LEAST_SHARE)
    present, *others = judges.designs
    more = [f"{other.generalizability:.2f} with {other.design}" for other in others if other.items == present.items]
    yield (
        f"The variance of the judges' scores by source: {shares}. Their mean tells items apart with a generalizability "
        f"coefficient of {present.generalizability:.2f}{f'; it would be {joined(more)}' if more else ''}."
    )


LEAST_SHARE = 0.01
"""Smaller shares of the variance are not named."""


def label_sentences(shares: Sequence[LabelShare]) -> Iterator[str]:
    """Yield how common each label is."""
    for share in shares[:MOST_LABELS]:
        line = f"{share.label!r} is {figure_text(share.judges)} of the judges' opinions"
        yield f"{line}; of people's it would be {figure_text(share.people)}." if share.people.is_known else f"{line}."
    if len(shares) > MOST_LABELS:
        yield f"The other {len(shares) - MOST_LABELS} labels are in report.json."


def preference_sentences(pairs: PreferenceStatistics | None) -> Iterator[str]:
    """Yield how often A is preferred, and which contestant is best."""
    if pairs is None:
        return
    line = f"The panel prefers A in a share of {figure_text(pairs.wins)}, ties counted half"
    yield f"{line}; people would in {figure_text(pairs.people)}." if pairs.people.is_known else f"{line}."
    whole = next((ranking for ranking in reversed(pairs.rankings) if ranking.name != "a person"), None)
    if whole is not None and whole.tau.is_known:
        who = "The panel" if whole.name == "panel" else whole.name
        person = next((ranking for ranking in pairs.rankings if ranking.name == "a person"), None)
        beside = (
            f"; a person against another reaches {figure_text(person.tau)}" if person and person.tau.is_known else ""
        )
        yield f"{who} orders the lists as people do with a Kendall's tau of {figure_text(whole.tau)}{beside}."
    if not pairs.contestants:
        yield f"Which of those compared is best cannot be said, because {pairs.reason}."
        return
    first = pairs.contestants[0]
    if pairs.reason is None:
        yield (
            f"In the judges' opinion {first.name} is the strongest of {len(pairs.contestants)} that were compared, "
            f"with a strength of {figure_text(first.strength)} after Bradley and Terry, and is first with probability "
            f"{first.ranks[0]:.2f}."
        )
        return
    most = pairs.rates[0]
    often = f"in a share of {figure_text(most.wins)} of its {most.pairs:,} pairs"
    yield f"In the judges' opinion {most.name} wins most often, {often}."
    yield (
        f"The judges' comparisons alone rank nobody, because {pairs.reason}. With a prior that holds all strengths "
        f"near 0, {first.name} is first of {len(pairs.contestants)} with "
        f"probability {first.ranks[0]:.2f}{_not_apart(pairs)}."
    )


def _not_apart(pairs: PreferenceStatistics) -> str:
    """Name the contestants that cannot be told from the first, because their intervals overlap."""
    first, *others = pairs.contestants
    low = first.strength.low or 0.0
    near = [
        contestant.name
        for contestant in others
        if contestant.strength.high is not None and contestant.strength.high >= low
    ]
    if not near:
        return ""
    return f", and cannot be told from {first_few(near, NAMED_MOST)}: more pairs, of other lists too, would do it"
