"""The statistics of a dimension in sentences that a sceptical reader can check against the figures.

`summary` writes all of them, the most important first; `probe_sentences` writes what the probes for biases have shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.analysis.powered import ALL_RATED, TOO_FEW
from dicast.app.domain.figure import Figure, figure_text, share_text
from dicast.app.domain.judge_statistics import (
    CalibratedRater,
    GroupDifference,
    GroupStatistics,
    LabelShare,
    PreferenceStatistics,
    ProbeStatistics,
    RaterStatistics,
    SampleCheck,
)
from dicast.app.domain.report import ReportDimension
from dicast.app.domain.text import first_few, percent


def difference_text(figure: Figure) -> str:
    """Format a known figure as `0.80 points more (0.50 to 1.10)`, or `less`."""
    assert figure.value is not None and figure.low is not None and figure.high is not None
    word, low, high = ("more", figure.low, figure.high) if figure.value > 0 else ("less", -figure.high, -figure.low)
    return f"{abs(figure.value):.2f} points {word} ({low:.2f} to {high:.2f})"


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
    elif probes and all(probe.p is None for probe in probes):
        yield f"Whether judges favour length or marks {figure_text(probes[0].effect)}."


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
        lines += _agreement(raters, person)
        lines += _biases(raters)
        if len(raters) > 2:
            judges = len(raters) - 1
            lines.append(
                f"The {judges} judges are worth {figure_text(independent, 1)} independent ones."
                if independent.is_known
                else f"How many independent judges the {judges} are worth {figure_text(independent)}."
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
    found = []
    for check in checks:
        if not _is_clear(check.p):
            continue
        if check.difference is None:
            found.append(f"they are spread over {check.name} unlike all items")
        else:
            found.append(_UNLIKE[check.name].format(far=difference_text(check.difference)))
    if found:
        yield (
            f"The rated items are no random sample of all items: {'; '.join(found)}. What is said of these raters' "
            "scores below holds for items like the rated ones alone."
        )


def _means(whole: RaterStatistics, *, known_probabilities: bool, unlike: bool) -> Iterator[str]:
    means = whole.peoples_mean
    if means is None:
        return
    if not means.powered.is_known:
        yield f"What people would have said of all items {figure_text(means.powered)}."
        return
    if means.saved_reason == ALL_RATED:
        of_all = figure_text(means.people_alone)
        yield f"These raters rated every judged item: of items like these their mean is {of_all}."
        return
    if means.saved_reason == TOO_FEW:
        yield (
            f"These raters' mean of all items would be {figure_text(means.people_alone)}, from their ratings alone: "
            f"{TOO_FEW}. It speaks of these raters and of items like these, and holds if the rated items are a random "
            "sample of all items."
        )
        return
    drawn = "drawn with the given probabilities" if known_probabilities else "a random sample of all items"
    drawn += ", which they are seen not to be" if unlike else ""
    yield (
        f"These raters' mean of all items would be {figure_text(means.powered)}; from their ratings alone it is "
        f"{figure_text(means.people_alone)}. Both speak of these raters and of items like these, and hold if the rated "
        f"items are {drawn}."
    )
    if means.saved is not None:
        yield (
            f"The judges are worth {means.saved:.1f} times as many ratings."
            if means.saved >= SAVES
            else "The judges saved no ratings: they tell next to nothing of what people say here."
        )


def _agreement(raters: Sequence[RaterStatistics], person: RaterStatistics) -> Iterator[str]:
    judges = [rater for rater in raters if rater.kind == "judge"]
    if any(v.kappa.is_known and not v.pearson.is_known for v in judges):
        yield from _kappas(judges, person)
        return
    best = max((v for v in judges if v.pearson.is_known), key=lambda v: v.pearson.value or 0.0, default=None)
    if best is None:
        yield f"How far the judges agree with people {figure_text((judges or raters)[0].pearson)}."
        return
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


def _kappas(judges: Sequence[RaterStatistics], person: RaterStatistics) -> Iterator[str]:
    """Yield the agreement beyond chance, for labels without an order."""
    best = max((v for v in judges if v.kappa.is_known), key=lambda v: v.kappa.value or 0.0)
    rate = "" if best.base_rate is None else f" (people's commonest label is {percent(best.base_rate)} of theirs)"
    yield f"The judge who agrees with people best is {best.name}, with a kappa of {figure_text(best.kappa)}{rate}."
    yield f"A person against another person: kappa {figure_text(person.kappa)}."


def _beside(best: RaterStatistics, person: RaterStatistics) -> str:
    """Compare a judge with a person, by whether their intervals overlap."""
    judge, other = best.pearson, person.pearson
    assert judge.low is not None and judge.high is not None and other.low is not None and other.high is not None
    if judge.low > other.high:
        return f"{best.name} follows people more closely than one of them does"
    if judge.high < other.low:
        return f"{best.name} follows people less closely than one of them does"
    return "the two cannot be told apart"


def _biases(raters: Sequence[RaterStatistics]) -> Iterator[str]:
    tested = [rater for rater in raters if rater.bias.is_known and rater.bias_p is not None]
    off = [rater for rater in tested if _is_clear(rater.bias_p)]
    for rater in sorted(off, key=lambda v: -abs(v.bias.value or 0.0))[:MOST_BIASES]:
        value, low, high = rater.bias.value or 0.0, rater.bias.low or 0.0, rater.bias.high or 0.0
        ends = (low, high) if value > 0 else (-high, -low)
        far = f"{abs(value):.2f} ({ends[0]:.2f} to {ends[1]:.2f})"
        name = "The panel" if rater.kind == "panel" else rater.name
        yield f"{name} scores {'above' if value > 0 else 'below'} these raters, by {far}."
    if tested and not off:
        yield "No judge is seen to be too strict or too kind for these raters."


def _is_clear(p: float | None) -> bool:
    return p is not None and p < CLEAR


FAMILY = "p below 0.05, corrected by Holm for all claims of this report"


def _groups(group: GroupStatistics) -> Iterator[str]:
    """Yield what people would say of the groups, if that is known, and then what the judges say of them."""
    if group.reason is not None:
        yield f"Groups by {group.by} cannot be compared, because {group.reason}."
        return
    yield from _groups_of_people(group)
    first, asked = group.means[0], [pair for pair in group.differences if pair.p is None and pair.difference.is_known]
    if first.ranks is not None:
        yield (
            f"By {group.by}, in the judges' opinion: {first.name} has the panel's highest mean, and is first by it "
            f"with probability {first.ranks[0]:.2f}."
        )
    for pair in asked:
        yield _asked(pair)
    others = [pair for pair in group.differences if pair.p is not None]
    if others:
        count = _clear_of(others, "other " if asked else "")
        yield f"In the judges' opinion {count} by {group.by} are clear of chance ({FAMILY})."


def _groups_of_people(group: GroupStatistics) -> Iterator[str]:
    known = [pair for pair in group.people_differences if pair.p is not None]
    if not known:
        if group.people_reason is not None:
            yield f"What people would say of the groups by {group.by} cannot be said, because {group.people_reason}."
        return
    best = max(group.means, key=lambda mean: (mean.people_ranks or [0.0])[0])
    if best.people_ranks is not None and best.people is not None:
        yield (
            f"By {group.by}, in these raters' opinion: {best.name} is likeliest to have the highest mean of all its "
            f"items, with probability {best.people_ranks[0]:.2f}; its mean would be {figure_text(best.people)}."
        )
    clear = [pair for pair in known if _is_clear(pair.p)]
    yield f"In these raters' opinion {_clear_of(known)} by {group.by} are clear of chance ({FAMILY})."
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
        f"{figure_text(whole.calibrated)} instead of {figure_text(whole.raw)}; that the map "
        "itself may err is not in this interval."
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
        yield f"Who is the best of those compared cannot be said, because {pairs.reason}."
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
