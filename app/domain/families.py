"""Families of models, recognised by their names as these are commonly written."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
_PATTERNS = {family: re.compile(rf"(?:{words})(?![a-z])") for family, words in _FAMILIES.items()}
_BREAK = re.compile(r"[^a-z0-9.-]+")


def family_of(name: str, overrides: Mapping[str, str] | None = None) -> str | None:
    """Return the family of a model, from `overrides` or else from its name; None if it is unknown.

    In `provider/model` the model counts first, and the family that a distilled or hosted model is named after first.
    """
    if overrides and name in overrides:
        return overrides[name]
    for part in reversed([part for part in _BREAK.split(name.lower()) if part]):
        matches = [
            (match.start(), family)
            for family, words in _PATTERNS.items()
            if (match := _at_word(words, part)) is not None
        ]  # fmt: skip
        if matches:
            return min(matches)[1]
    return None


def _at_word(words: re.Pattern[str], part: str) -> re.Match[str] | None:
    """Return the first match of the pattern that begins at the start of a word."""
    return next((m for m in words.finditer(part) if m.start() == 0 or not part[m.start() - 1].isalpha()), None)
