"""The results of probes in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.assessment.telling import difference_text, figure_text, percent
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import ProbeStatistics

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
    for name, what in _SUBJECTS.items():
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
            yield f"No judge is seen to be moved by {what}."
        elif not clear:
            yield f"How far judges are moved by {what} {figure_text(matching[0].effect)}."


def _of_ratings(probes: Sequence[ProbeStatistics]) -> Iterator[str]:
    clear = [probe for probe in probes if probe.p is not None and probe.p < CLEAR]
    for probe in clear:
        name = "The panel" if probe.voice == "panel" else probe.voice
        yield (
            f"{name} gives {figure_text(probe.effect)} more for {_OBSERVED[probe.probe]} than people do, "
            "other things as they are "
            "here: what goes with it may be the cause."
        )
    if not clear and any(probe.p is not None for probe in probes):
        yield "No judge is seen to favour length or marks more than people do."
    elif probes and all(probe.p is None for probe in probes):
        yield f"Whether judges favour length or marks {figure_text(probes[0].effect)}."


def _rater(probe: ProbeStatistics) -> str:
    return "The panel" if probe.voice == "panel" else f"The judge '{probe.voice}'"


def _clear(probe: ProbeStatistics) -> str:
    if probe.probe == "position":
        assert probe.first is not None
        return (
            f"{_rater(probe)} prefers the text that it is shown {_place(probe.first)}: the first one wins in "
            f"{percent(probe.first)} of its judgements."
        )
    far = difference_text(probe.effect)
    match probe.probe:
        case "self_preference":
            than = "people do" if probe.against == "people" else "the other judges do"
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
        line = f"The preference of '{probe.voice}' turned with the order for {percent(probe.moved)} of the pairs"
        if probe.by_itself is not None and probe.by_itself.is_known:
            line += f", and for {percent(probe.by_itself)} of those that were judged again as they are"
        yield f"{line}; such a pair counts as a tie."


def _attacks(probes: Sequence[ProbeStatistics]) -> Iterator[str]:
    """Yield for each judge whose scores moved how often they did, and by which attacks."""
    for probe in probes:
        if probe.moved is None or not probe.moved.is_known or not probe.moved.value:
            continue
        line = f"{_rater(probe)} changed its score for {percent(probe.moved)} of the texts with an attack"
        if probe.by_itself is not None and probe.by_itself.is_known:
            line += f", and for {percent(probe.by_itself)} of those that were judged again as they are"
        best = ", ".join(f"{entry.attack} ({entry.shift:+.2f})" for entry in probe.attacks[:3])
        yield line + (f"; what moved it furthest: {best}." if best else ".")
