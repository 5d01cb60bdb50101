"""The biases that a job may look for in its judges, and what each needs.

Some are measured on what is judged anyway: what a probe needs to know of an item is measured then, and stored beside
each opinion. Others are tried out: sampled items are judged once more, with one thing changed (app/domain/variants.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dicast.app.domain.item import Item
from dicast.app.domain.text import Id, MetadataName, Strict

_MARKED = re.compile(r"^ {0,3}(?:#{1,6} |[-*+] |\d{1,3}[.)] |```|\|.*\|)|\*\*\S|__\S", re.MULTILINE)
_LEADING = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|[-*+][ \t]+|\d{1,3}[.)][ \t]+|>[ \t]?)", re.MULTILINE)
_RULES = re.compile(r"^[ \t]*(?:```[^\n]*|\|?(?:[ \t]*:?-{3,}:?[ \t]*\|?)+|[-*_]{3,})[ \t]*\n?", re.MULTILINE)
_AROUND = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1")
_CODE = re.compile(r"`([^`\n]+)`")
_TABLE = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.MULTILINE)
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")


def is_marked(text: str) -> bool:
    """Whether the text has headings, lists, bold print, tables or code blocks."""
    return _MARKED.search(text) is not None


def plain(text: str) -> str:
    """Return the text without markup; unchanged if nothing else would be left."""
    bare = _RULES.sub("", text)
    bare = _TABLE.sub(lambda row: ", ".join(cell.strip() for cell in row[1].split("|")), bare)
    bare = _LEADING.sub("", bare)
    bare = _CODE.sub(r"\1", _AROUND.sub(r"\2", bare))
    return bare if bare.strip() else text


def marked_up(text: str) -> str:
    """Return the text with markup: the first sentence in bold, the others as a list. No word is added.

    It serves to test whether a judge scores the looks of a text.
    """
    first, *others = [part.strip() for part in _SENTENCES.split(text) if part.strip()] or [text]
    return "\n".join([f"**{first}**", *([""] if others else []), *(f"- {other}" for other in others)])


MeasuredProbeName = Literal["verbosity", "formatting"]
VariantProbeName = Literal["injection", "authority", "sycophancy", "markdown", "batching", "order"]
ProbeName = Literal[
    "verbosity",
    "formatting",
    "self_preference",
    "injection",
    "authority",
    "sycophancy",
    "markdown",
    "batching",
    "order",
    "position",
]
MEASURES: dict[MeasuredProbeName, str] = {"verbosity": "text.chars", "formatting": "text.marked"}
"""The column of each measured probe; no metadata of an item has such a name."""

FEWEST_ITEMS, USUAL_ITEMS, MOST_ITEMS = 10, 50, 1000
MOST_ATTACKS = 10
MOST_FAMILIES = 200
_Items = Field(
    default=USUAL_ITEMS, ge=FEWEST_ITEMS, le=MOST_ITEMS, description="how many items are drawn and judged once more"
)


class SeenProbe(Strict):
    """Does a judge give more than people do for length, or for marks of Markdown? From ratings, without calls."""

    probe: MeasuredProbeName


class SelfPreference(Strict):
    """Does a judge favour texts of its own family of models? Without calls."""

    probe: Literal["self_preference"]
    author: MetadataName = Field(default="model", description="items' metadata that names the model which wrote them")
    families: dict[Id, Id] = Field(
        default_factory=dict, max_length=MOST_FAMILIES,
        description="families of judges, models or authors, by name, where the name does not tell",
    )  # fmt: skip


class TriedProbe(Strict):
    """Judges drawn items once more: with a claimed score (two variants each), with or without Markdown, one dimension
    per call, or with the dimensions in reverse order."""

    probe: Literal["authority", "sycophancy", "markdown", "batching", "order"]
    items: int = _Items


class Injection(Strict):
    """Judges drawn items once more with attacks in them (app/domain/variants.py)."""

    probe: Literal["injection"]
    items: int = _Items
    attacks: int = Field(default=1, ge=1, le=MOST_ATTACKS, description="attacks an item, each judged for itself")


Probe = Annotated[SeenProbe | SelfPreference | TriedProbe | Injection, Field(discriminator="probe")]


def _expand_names(value: Any) -> Any:
    """Expand `verbosity` to `{probe: verbosity}`."""
    return (
        [{"probe": probe} if isinstance(probe, str) else probe for probe in value] if isinstance(value, list) else value
    )


Probes = Annotated[list[Probe], BeforeValidator(_expand_names)]


def author_column(probes: Any) -> str | None:
    """Return the column with the items' authors that a job's `probes` need, before validation; None if none needs
    it."""
    for entry in probes if isinstance(probes, list) else ():
        probe = (
            entry.model_dump() if isinstance(entry, Strict) else {"probe": entry} if isinstance(entry, str) else entry
        )
        if isinstance(probe, dict) and probe.get("probe") == "self_preference":
            column = probe.get("author", "model")
            return column if isinstance(column, str) else None
    return None


def names(probes: Iterable[Probe]) -> list[ProbeName]:
    """Return the probes' names, each once."""
    return list(dict.fromkeys(probe.probe for probe in probes))


def variant_probes(probes: Iterable[Probe]) -> list[TriedProbe | Injection]:
    """Return the probes for which items are judged once more."""
    return [probe for probe in probes if isinstance(probe, TriedProbe | Injection)]


def variants_an_item(probe: TriedProbe | Injection) -> int:
    """Return how often one drawn item is judged once more."""
    if isinstance(probe, Injection):
        return probe.attacks
    return 2 if probe.probe in ("authority", "sycophancy") else 1


def count_variants(probes: Sequence[Probe], items: int) -> int:
    """Return how many variants are judged for a job of `items` items."""
    return sum(min(probe.items, items) * variants_an_item(probe) for probe in variant_probes(probes))


def self_preference_probe(probes: Iterable[Probe]) -> SelfPreference | None:
    """Return the probe that needs to know who wrote the items, or None."""
    return next((probe for probe in probes if isinstance(probe, SelfPreference)), None)


def without_ratings(probes: Iterable[Probe]) -> bool:
    """Return whether any of the probes works without ratings by people."""
    return any(not isinstance(probe, SeenProbe) for probe in probes)


def measures(probes: Collection[Probe]) -> list[str]:
    """Return the columns that these probes need besides the items' own."""
    selected = names(probes)
    return [column for probe, column in MEASURES.items() if probe in selected]


def measured(item: Item, probes: Collection[Probe]) -> dict[str, int]:
    """Return an item's length in characters, and 1 if its text has Markdown (headings, lists, bold, tables, code), as
    far as `probes` need them."""
    text = item.output
    values = {"text.chars": len(text), "text.marked": int(is_marked(text))}
    return {name: values[name] for name in measures(probes)}


_FAMILIES = {
    "openai": r"gpt|chatgpt|davinci|o[134](?:-mini|-pro|-preview)?|openai",
    "anthropic": r"claude|anthropic|opus|sonnet|haiku",
    "google": r"gemini|gemma|palm|bard|google",
    "meta": r"llama|codellama|meta",
    "mistral": r"mistral|mixtral|ministral|codestral|magistral|devstral|pixtral|mistralai",
    "qwen": r"qwen|qwq|alibaba",
    "deepseek": r"deepseek",
    "xai": r"grok|xai",
    "cohere": r"command|aya|cohere",
    "microsoft": r"phi|microsoft",
    "nvidia": r"nemotron|nvidia",
    "moonshot": r"kimi|moonshot|moonshotai",
    "zhipu": r"glm|chatglm|zhipu|zai",
    "amazon": r"nova|titan|amazon",
    "ai21": r"jamba|jurassic|ai21",
    "huggingface": r"smollm|zephyr|huggingfacetb",
}
_PATTERNS = {family: re.compile(rf"(?:{names})(?![a-z])") for family, names in _FAMILIES.items()}
_BREAK = re.compile(r"[^a-z0-9.-]+")


def family_of(name: str, overrides: Mapping[str, str] | None = None) -> str | None:
    """Return the family of a model, from `overrides` or else from its name; None if it is unknown.

    In `provider/model` the model counts first, and the family that a distilled or hosted model is named after first.

    Families are recognised by the names of models as these are commonly written.
    """
    if overrides and name in overrides:
        return overrides[name]
    for part in reversed([part for part in _BREAK.split(name.lower()) if part]):
        matches = [
            (match.start(), family)
            for family, pattern in _PATTERNS.items()
            if (match := _at_word(pattern, part)) is not None
        ]  # fmt: skip
        if matches:
            return min(matches)[1]
    return None


def _at_word(pattern: re.Pattern[str], part: str) -> re.Match[str] | None:
    """Return the first match of the pattern that begins at the start of a word."""
    return next((m for m in pattern.finditer(part) if m.start() == 0 or not part[m.start() - 1].isalpha()), None)
