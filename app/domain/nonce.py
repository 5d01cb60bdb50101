"""The code that ties an answer to its question, and marks where the judged material ends.

It is derived from a secret of the installation and from the question: a retry is the same request byte for byte, so
that gateway caches serve it and reruns are reproducible, and nobody without the secret can write the code into a text
that is to be judged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from itertools import count

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.panel import Agent

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
