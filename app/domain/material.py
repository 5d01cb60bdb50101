"""The judged material as a judge reads it: data behind fences, whatever it holds (see app/domain/prompt.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dicast.app.domain.item import Item
from dicast.app.domain.nonce import is_fresh
from dicast.errors import DicastError

_NONCE = re.compile(r"[0-9a-f]{16,64}")

_TEMPLATE_TOKEN = re.compile(
    r"""<(?= [|｜] [^|｜<>\s]{1,64} [|｜]> )                     # <|im_start|>, <|eot_id|>
      | <(?= /?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn)> )
      | <(?= </?SYS>> )
      | \[(?= /?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\] )
    """,
    re.VERBOSE | re.IGNORECASE,
)


class TemplateError(DicastError, ValueError):
    """The template is none, cannot be used on an item, or does not end. The message says which and why."""

    problem = "invalid-job"


def material(item: Item, nonce: str, arranged: Sequence[str] | None = None) -> list[str]:
    """All that is judged, each of its lines behind `> `, and the line by which it ends; between them the lines that the
    job's template has `arranged`, if it has one.

    Raises `ValueError` for a nonce that is none, or that occurs in the item.
    """
    if not _NONCE.fullmatch(nonce):
        raise ValueError("a nonce is 16 to 64 hexadecimal digits, in lower case")
    if not is_fresh(nonce, item):
        raise ValueError("the nonce occurs in the item")
    parts = ["MATERIAL"]
    if arranged is not None:
        return [*parts, *arranged, f"END OF MATERIAL {nonce}"]
    if item.prompt:
        parts += ["The task that the text answers:", quoted(item.prompt)]
    if item.reference:
        parts += ["A reference answer, known to be good:", quoted(item.reference)]
    return [*parts, "The text to judge:", quoted(item.text), f"END OF MATERIAL {nonce}"]


def quoted(text: str) -> str:
    """Each line behind `> `; every line end that Unicode knows counts, so that none can start a line of its own."""
    return "\n".join(f"> {line}" for line in _TEMPLATE_TOKEN.sub(r"\g<0> ", text).splitlines())
