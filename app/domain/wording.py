"""How the prompt describes what is judged: one text, two to compare, or a conversation."""

from __future__ import annotations

from typing import NamedTuple

from dicast.app.domain.item import Item


class Wording(NamedTuple):
    """The parts of a prompt that depend on the kind of its item."""

    task: str
    """What a judge does, for the system text."""
    single: str
    """The request behind the material, for one criterion."""
    batch: str
    """The request for several criteria."""
    argument: str
    """What the judge's argument is to say."""
    quoted: str
    """What the judge's quotes are from."""


_TEXT = Wording(
    task="You judge a text, by the criteria that you are given, and by nothing else.",
    single="Judge the text above by this one criterion:",
    batch="Judge the text above by each of these criteria, each for itself:",
    argument="what the text does well and what it does badly by this criterion",
    quoted="the text",
)
_PAIR = Wording(
    task=(
        "You compare two texts, A and B, by the criteria that you are given, and by nothing else. Which of them comes "
        "first says nothing of their worth."
    ),
    single="Compare the texts A and B above by this one criterion:",
    batch="Compare the texts A and B above by each of these criteria, each for itself:",
    argument="what each of the texts does better than the other by this criterion",
    quoted="the texts",
)
_LAST_ANSWER = Wording(
    task=(
        "You judge the last answer of a conversation, by the criteria that you are given, and by nothing else. The "
        "turns before it are what it answers, and are not judged."
    ),
    single="Judge the last answer of the conversation above by this one criterion:",
    batch="Judge the last answer of the conversation above by each of these criteria, each for itself:",
    argument="what the last answer does well and what it does badly by this criterion",
    quoted="it",
)
_CONVERSATION = Wording(
    task="You judge a whole conversation, by the criteria that you are given, and by nothing else.",
    single="Judge the conversation above as a whole by this one criterion:",
    batch="Judge the conversation above as a whole by each of these criteria, each for itself:",
    argument="what goes well in the conversation and what goes badly by this criterion",
    quoted="it",
)


def wording(item: Item) -> Wording:
    """Return the words for this item."""
    if item.kind == "conversation":
        return _CONVERSATION if item.judged == "conversation" else _LAST_ANSWER
    return _PAIR if item.kind == "pair" else _TEXT
