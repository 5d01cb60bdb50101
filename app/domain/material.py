"""The judged material as a judge reads it, quoted as data (see app/domain/prompt.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from dicast.app.domain.image import Image
from dicast.app.domain.item import ROLES, Item, ItemKind, Turn
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

END = "END OF MATERIAL"
"""The material ends at a line of this and the nonce."""


class TemplateError(DicastError, ValueError):
    """The template is invalid, cannot be used on an item, or does too much. The message says which and why."""

    problem = "invalid-job"


def material(item: Item, nonce: str, arranged: Sequence[str] | None = None) -> list[str]:
    """Return the lines of all that is judged, each quoted with `> `, and the line that ends it. If the job has a
    template, its `arranged` lines stand between them.

    Raises `ValueError` for an invalid nonce, or one that occurs in the item.
    """
    if not _NONCE.fullmatch(nonce):
        raise ValueError("a nonce is 16 to 64 hexadecimal digits, in lower case")
    if not is_fresh(nonce, item):
        raise ValueError("the nonce occurs in the item")
    parts = ["MATERIAL"]
    if arranged is not None:
        return [*parts, *arranged, *_image_lines(item.all_images), *_opinions(item), f"{END} {nonce}"]
    if item.prompt:
        parts += [_TASKS[item.kind], quote_lines(item.prompt)]
    if item.reference:
        parts += ["A reference answer, known to be good:", quote_lines(item.reference)]
    if item.images:
        parts += ["What belongs to it in images:", *_image_lines(item.images)]
    return [*parts, *_judged(item), *_opinions(item), f"{END} {nonce}"]


def _opinions(item: Item) -> list[str]:
    """Return what a panel's chief is shown. Who gave which score stands outside of the quotes, where no argument can
    write."""
    parts = ["What the other judges say:"] if item.opinions else []
    for opinion in item.opinions or ():
        criterion = json.dumps(opinion.criterion, ensure_ascii=not opinion.criterion.isprintable())
        judge = f"By the criterion {criterion}, judge {opinion.judge}"
        parts += [f"{judge} has no opinion."] if opinion.said is None else [
            f"{judge} gives {opinion.said} and argues:", quote_lines(opinion.argument)
        ]  # fmt: skip
    return parts


def image_line(number: int) -> str:
    """Return the line after which an image stands; no text can forge one, since all texts are quoted."""
    return f"IMAGE {number} OF THE MATERIAL"


def _image_lines(images: Sequence[Image], before: int = 0) -> list[str]:
    """Return the line of each image, and its description; `before` counts the item's images that precede them."""
    lines = []
    for number, image in enumerate(images, before + 1):
        if image.description:
            lines += [f"What is said of image {number}:", quote_lines(image.description)]
        lines.append(image_line(number))
    return lines


_TASKS: Mapping[ItemKind, str] = {
    "text": "The task that the text answers:",
    "pair": "The task that both texts answer:",
    "conversation": "The task of the conversation:",
}


def _judged(item: Item) -> list[str]:
    if item.messages is not None:
        return _conversation(item.messages, last_answer=item.judged == "last_answer", before=len(item.images or ()))
    if item.text is not None:
        return ["The text to judge:", quote_lines(item.text)]
    return ["Text A:", quote_lines(item.text_a or ""), "Text B:", quote_lines(item.text_b or "")]


def _conversation(messages: Sequence[Turn], *, last_answer: bool, before: int) -> list[str]:
    """Return the turns of a conversation.

    A turn's header stands outside of the quotes, where no message can write one. What a message says about itself is
    quoted: its name, and a role that is none of the usual ones. `before` counts the images in front of the first
    turn's.
    """
    parts = ["The conversation, turn by turn:"]
    for number, message in enumerate(messages, 1):
        if last_answer and number == len(messages):
            parts.append("The last answer, which is judged:")
        turn = f"Turn {number}"
        if message.role in ROLES:
            parts.append(f"{turn}, by {message.role}:")
        else:
            parts += [f"{turn}, by a role that is called:", quote_lines(message.role)]
        for subject, text in (
            ("the name it gives", message.name), ("the tool call it answers", message.tool_call_id),
            ("its text", message.content), ("its tool calls", message.calls),
        ):  # fmt: skip
            if text:
                parts += [f"{turn}, {subject}:", quote_lines(text)]
        if message.images:
            parts += [f"{turn}, its images:", *_image_lines(message.images, before)]
            before += len(message.images)
    return parts


def quote_lines(text: str) -> str:
    """Prefix each line with `> `; every Unicode line end counts, so that none can start a line of its own."""
    return "\n".join(f"> {line}" for line in _TEMPLATE_TOKEN.sub(r"\g<0> ", text).splitlines())
