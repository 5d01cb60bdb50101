"""Adds Markdown markup to a text and removes it, to test whether a judge scores the looks of a text."""

from __future__ import annotations

import re

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
    """Return the text with markup: the first sentence in bold, the others as a list. No word is added."""
    first, *others = [part.strip() for part in _SENTENCES.split(text) if part.strip()] or [text]
    return "\n".join([f"**{first}**", *([""] if others else []), *(f"- {other}" for other in others)])
