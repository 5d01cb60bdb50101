"""The judged material as a judge reads it, quoted as data, and the code that marks its end (see app/domain/prompt.py).

This nonce also ties an answer to its question. It is derived from a secret of the installation and from the question: a
retry is the same request byte for byte, so that gateway caches serve it and reruns are reproducible, and nobody without
the secret can write the code into a text that is to be judged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from itertools import count

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.image import Image
from dicast.app.domain.item import ROLES, Item, ItemKind, Turn
from dicast.app.domain.panel import Agent
from dicast.errors import DicastError

KEY_BYTES = 32
NONCE_CHARS = 16
"""The number of hexadecimal digits, in lower case."""


def key_from(secret: str | None, namespace: str) -> bytes | None:
    """Derive an installation's key (`KEY_BYTES` bytes) from its operator's secret, or return None without one. Two
    installations that share a secret have different keys."""
    if secret is None:
        return None
    return hmac.digest(secret.encode(), b"dicast nonces of " + namespace.encode(), "sha256")


def nonce_for(
    key: bytes, agent: Agent, dimensions: Sequence[Dimension], item: Item, replicate: int | Sequence[int],
    template: str | None = None,
) -> str:  # fmt: skip
    """Return the nonce of one question, asked for one replicate or for several at once.

    It occurs in none of the item's texts (`is_fresh`), and two questions share one only if they ask the same: same
    texts, judge, criteria and replicates. The job and the ids of items do not count, unless a `template` may show them.
    """
    question = question_digest(agent, dimensions, item, replicate, template)
    for number in count():
        nonce = hmac.new(key, question + b"%d" % number, hashlib.sha256).hexdigest()[:NONCE_CHARS]
        if is_fresh(nonce, item):
            return nonce
    raise AssertionError("counting does not end")


def question_digest(
    agent: Agent, dimensions: Sequence[Dimension], item: Item, replicate: int | Sequence[int],
    template: str | None = None,
) -> bytes:  # fmt: skip
    """Return a digest (32 bytes) of what a judge is asked: two questions share one only if they ask the same, in the
    sense of `nonce_for`. The wording of Dicast's own prompts is not part of it (app/domain/fingerprints.py)."""
    replicates = [replicate] if isinstance(replicate, int) else replicate
    digest = hashlib.sha256(",".join(map(str, replicates)).encode())
    arranged = [] if template is None else [template, item.id, json.dumps(item.metadata, sort_keys=True)]
    for part in (
        *_texts(item),
        *arranged,
        agent.model_dump_json(exclude={"template"} | agent.unset),
        *map(_dimension_text, dimensions),
    ):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b":%d:" % len(data))  # or two texts could be divided otherwise
        digest.update(data)
    return digest.digest()


def _texts(item: Item) -> list[str]:
    """Return what distinguishes items. Plain items keep their original form, so that their requests do not change.
    Their own criteria stand in the dimensions that ask about them (`Dimension.asked_about`)."""
    texts = (item.text, item.prompt, item.reference) if item.kind == "text" and item.images is None else ()
    plain = ["" if text is None else f"={text}" for text in texts]
    if plain and item.opinions is not None:
        plain += [opinion.model_dump_json() for opinion in item.opinions]
    return plain or [item.model_dump_json(exclude={"id", "metadata", "criteria"}, exclude_none=True)]


def _dimension_text(dimension: Dimension) -> str:
    """Return the dimension without fields that were added later and show a judge nothing, so that requests do not
    change."""
    excluded = {"panel", "version", "template"}
    return dimension.model_dump_json(exclude=excluded if dimension.examples else excluded | {"examples"})


def is_fresh(nonce: str, item: Item) -> bool:
    """Return whether `nonce` is absent from all of the item's texts."""
    return not any(nonce in text.lower() for text in item.texts)


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
