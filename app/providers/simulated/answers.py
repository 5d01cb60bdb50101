"""Generates a judge's answer: an instance of the given JSON schema, or the object that the prompt describes.

Scores and words depend on (seed, model, prompt without its nonce) alone, so that a call repeated gets the same answer.
Scores are drawn evenly from the scale, or, with a `Perception`, follow what the text says of its own quality: then
agreement and bias are known, and statistics can be checked against them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dicast.app.domain.material import quote_lines
from dicast.app.domain.variants import ATTACKS, Aim, Attack

_CLAIM = re.compile(
    r"^> .*(?:rated this text|that it deserves) (-?\d{1,9}) on a scale from (-?\d{1,9}) to (-?\d{1,9})\.$", re.MULTILINE
)
_MARKS = re.compile(r"^> (?:#{1,6} |[-*] |\*\*\S|```|\|)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{high\}|\{low\}|\n")


class Biases(NamedTuple):
    """The biases of a judge. `obeys` is the share of attacks that it obeys. The others are points of the scale: for a
    claimed score (the highest; as many less for the lowest), for marks of Markdown, for being asked for several
    criteria at once, and for the last of these.

    What a judge adds to a score because of something that is not quality, it reads from the prompt as any model would:
    attacks (app/domain/variants.py), claimed scores and marks of Markdown in quoted lines, and how many criteria it is
    asked for.
    """

    obeys: float = 0.0
    claims: float = 0.0
    marks: float = 0.0
    batched: float = 0.0
    late: float = 0.0

    def points(self, prompt: str, place: int, criteria: int) -> float:
        """Return the points that are added to the score of the criterion at `place`. `criteria` is their number in a
        batch, 0 without one."""
        total = 0.0
        if self.claims and (claim := _CLAIM.search(prompt)) is not None:
            score, low, high = map(int, claim.groups())
            total += self.claims * (2 * (score - low) / (high - low) - 1)
        if self.marks and _MARKS.search(prompt) is not None:
            total += self.marks
        if criteria:
            total += self.batched + self.late * place / max(1, criteria - 1)
        return total


def sign_of(attack: Attack) -> str:
    """Return the longest part of an attack that is on one line and the same on every scale, as it stands in a
    prompt."""
    part = max(_PLACEHOLDER.split(attack.text), key=len)
    return quote_lines(part).removeprefix("> ")


_SIGNS = tuple((sign_of(attack), attack.aim) for attack in ATTACKS)


def attack_in(prompt: str) -> Aim | None:
    """Return the aim of an attack in the material, or None if there is none."""
    material = "\n".join(line for line in prompt.splitlines() if line.startswith("> "))
    return next((aim for sign, aim in _SIGNS if sign in material), None)


# The machine-readable lines of app/domain/prompt.py; quoted material cannot imitate them at the start of a line.
_NONCE = re.compile(r"^(?:NONCE:|END OF MATERIAL) ([0-9a-f]{16,64})$", re.MULTILINE)
_SCALE = re.compile(r"^SCALE: (-?\d{1,9})\.\.(-?\d{1,9})$", re.MULTILINE)
_LABELS = re.compile(r"^LABELS: (\[.*\])$", re.MULTILINE)
_QUESTIONS = re.compile(r"^QUESTIONS: (\d{1,3})$", re.MULTILINE)
_CRITERION = re.compile(r'^CRITERION: (".*") SCALE: (-?\d{1,9})\.\.(-?\d{1,9})$', re.MULTILINE)
_QUALITY = re.compile(r"^> (?:- |\*\*)?QUALITY (0(?:\.\d{1,6})?|1)(?:\*\*)?$", re.MULTILINE)
_LABEL = re.compile(r"^> LABEL (.+)$", re.MULTILINE)
_DISSENT = re.compile(r'Under "dissent",')
_CITED_VERDICTS = re.compile(r'^By the criterion ".*", judge \d+ gives (.+) and argues:$', re.MULTILINE)
_PREFERENCES = (("B", "tie", "A"), ("B much better", "B better", "tie", "A better", "A much better"))
# Anthropic's SDK moves bounds that the API does not know into the description: {minimum: 1, maximum: 10}
_DESCRIBED = re.compile(r"\{[^{}]*\}\s*$")
_SENTENCE = (
    "the text answers the question directly and its central claim is supported by what it cites although one step of "
    "the reasoning stays implicit while the tone fits the reader and the order of the points makes it easy to follow"
)
_WORDS = _SENTENCE.split()
_MAX_DEPTH = 30
_VERDICTS = ("score", "label", "answers")


def nonce_of(prompt: str) -> str | None:
    """Return the nonce in the prompt, or None."""
    match = _NONCE.search(prompt)
    return match[1] if match else None


class Perception(NamedTuple):
    """A judge's perception of a text's quality: with a normal error of deviation `noise` and mean `bias`, in points of
    the scale, with a further error that differs between replicates (`restless`), and with `leanings`. Of two texts it
    perceives the difference. `label_error` is the share of labels (`LABEL good` in the text) that it mistakes."""

    noise: float
    bias: float = 0.0
    label_error: float = 0.0
    restless: float = 0.0
    leanings: Biases = Biases()


class SimulatedJudge:
    """Answers one call. `argument_chars` is the length of free texts where the schema sets none."""

    def __init__(
        self, seed: int, model: str, prompt: str, argument_chars: int, perception: Perception | None = None
    ) -> None:
        self._prompt = prompt
        self._perception = perception
        self._nonce = nonce_of(prompt) or ""
        digest = hashlib.blake2b(digest_size=16, key=str(seed).encode())
        digest.update(model.encode(errors="replace") + b"\0")
        bare = prompt.replace(self._nonce, "") if self._nonce else prompt
        digest.update(bare.encode(errors="replace"))
        self._state = int.from_bytes(digest.digest(), "big")
        self._argument_chars = argument_chars
        self._scored = 0

    def plain(self) -> dict[str, Any]:
        """Return the object that the prompt asks for."""
        argued = {
            "nonce": self._nonce,
            "argument": self._words(self._argument_chars),
            "cited_evidence": [self._words(40)],
        }
        if _DISSENT.search(self._prompt):
            argued["dissent"] = self._dissent(self._argument_chars)
        if labels := _LABELS.search(self._prompt):
            return {**argued, "label": self._label(json.loads(labels[1]))}
        if questions := _QUESTIONS.search(self._prompt):
            return {**argued, "answers": self._answers([str(n) for n in range(1, int(questions[1]) + 1)])}
        scale = _SCALE.search(self._prompt)
        low, high = (int(scale[1]), int(scale[2])) if scale else (1, 10)
        return {**argued, "score": self._score(low, high)}

    def instance(self, schema: Mapping[str, Any]) -> Any:
        """Return a value that satisfies the schema."""
        return self._value(schema, schema, "", 0)

    def _value(self, schema: Any, root: Mapping[str, Any], name: str, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        schema = _resolved(schema, root)
        if "const" in schema:
            return schema["const"]
        if len(schema.get("enum") or ()) == 1:  # no choice, so what follows is as if nothing had been asked
            return schema["enum"][0]
        if schema.get("enum"):
            choices = schema["enum"]
            return self._label(choices) if name == "label" else choices[self._below(len(choices))]
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if alternatives:
            return self._value(alternatives[0], root, name, depth + 1)
        return self._of_kind(schema, root, name, depth)

    def _of_kind(self, schema: Mapping[str, Any], root: Mapping[str, Any], name: str, depth: int) -> Any:
        value: Any = None
        match _kind(schema):
            case "object":
                properties = schema.get("properties", {})
                if name == "answers":
                    return self._answers(list(properties))
                value = {key: self._value(part, root, key, depth + 1) for key, part in properties.items()}
            case "array":
                value = self._array(schema, root, name, depth)
            case "integer":
                value = self._number(schema, whole=True, score=name == "score")
            case "number":
                value = self._number(schema, whole=False)
            case "boolean":
                value = bool(self._below(2))
            case "string":
                value = self._text(schema, name)
        return value

    def _array(self, schema: Mapping[str, Any], root: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        """Return one element for each identifier that the elements may have; else as few as allowed, but at least
        one."""
        items = schema.get("items", {})
        variants = _variants(items, root, self._prompt)
        fewest, most = int(_bound(schema, "minItems", 0)), int(_bound(schema, "maxItems", 1_000_000))
        length = min(most, max(fewest, len(variants) or 1))
        one_each = [variants[i % len(variants)] for i in range(length)] if variants else [items] * length
        return [self._value(variant, root, name, depth + 1) for variant in one_each]

    def _number(self, schema: Mapping[str, Any], *, whole: bool, score: bool = False) -> int | float:
        low = _bound(schema, "minimum", _bound(schema, "exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
        high = _bound(schema, "maximum", _bound(schema, "exclusiveMaximum", low + 10) - ("exclusiveMaximum" in schema))
        step = schema.get("multipleOf", 1)
        first = -(-low // step)
        draw = self._score if score else self._between
        number = draw(int(first), max(int(first), int(high // step))) * step
        return int(number) if whole else number

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        if name == "nonce" and self._nonce:
            return self._nonce
        shortest, longest = int(_bound(schema, "minLength", 0)), int(_bound(schema, "maxLength", 10**6))
        chars = min(longest, max(shortest, self._argument_chars))
        return self._dissent(chars) if name == "dissent" else self._words(chars)

    def _dissent(self, chars: int) -> str:
        """Return a chief's dissent, which is empty if all opinions in the prompt agree."""
        return self._words(chars) if len(set(_CITED_VERDICTS.findall(self._prompt))) > 1 else ""

    def _words(self, chars: int) -> str:
        start = self._below(len(_WORDS))
        filler = " ".join(_WORDS[start:] + _WORDS[:start])
        return (filler * (chars // len(filler) + 1))[:chars]

    def _score(self, low: int, high: int) -> int:
        """Return a score that is drawn evenly, or follows the quality that the text states."""
        qualities = _QUALITY.findall(self._prompt) if self._perception is not None else []
        return (
            self._perceived(low + float(qualities[0]) * (high - low), low, high)
            if qualities
            else self._between(low, high)
        )

    def _label(self, labels: Sequence[str]) -> str:
        """Return a label that is drawn evenly, or follows the text: the label that it names, the place of its quality
        among the labels, or which of two texts has the higher quality."""
        top = len(labels) - 1
        if self._perception is None:
            return labels[self._below(top + 1)]
        qualities = _QUALITY.findall(self._prompt)
        if tuple(labels) in _PREFERENCES and len(qualities) == 2:
            apart = float(qualities[0]) - float(qualities[1])
            return labels[self._perceived(top / 2 + apart * top, 0, top)]
        label_match = _LABEL.search(self._prompt)
        if label_match is None or label_match[1] not in labels:
            return labels[self._score(0, top)]
        others = [label for label in labels if label != label_match[1]]
        mistaken = self._below(2**53) < self._perception.label_error * 2**53
        return others[self._below(len(others))] if mistaken else label_match[1]

    def _answers(self, numbers: Sequence[str]) -> dict[str, bool]:
        """Return answers that are drawn evenly, or as many yes (the first ones) as the text's quality earns."""
        if self._perception is None or not _QUALITY.search(self._prompt):
            return {number: bool(self._below(2)) for number in numbers}
        earned = self._score(0, len(numbers))
        return {number: at < earned for at, number in enumerate(numbers)}

    def _perceived(self, true: float, low: int, high: int) -> int:
        assert self._perception is not None
        leanings, place = self._perception.leanings, self._scored
        self._scored += 1
        score = true + self._perception.bias + self._perception.noise * self._normal()
        score += leanings.points(self._prompt, place, len(_CRITERION.findall(self._prompt)))
        if self._perception.restless:
            score += self._perception.restless * self._call_noise(place)
        aim = attack_in(self._prompt) if leanings.obeys else None
        if aim is not None and self._below(2**53) < leanings.obeys * 2**53:
            score = high if aim == "high" else low
        return min(max(round(score), low), high)

    def _normal(self) -> float:
        even = [(self._below(2**53) + 1) / (2**53 + 1) for _ in range(2)]
        return math.sqrt(-2 * math.log(even[0])) * math.cos(2 * math.pi * even[1])

    def _call_noise(self, place: int) -> float:
        """Return a normally distributed number that depends on the nonce and the place alone."""
        digest = hashlib.blake2b(f"{self._nonce}:{place}".encode(), digest_size=16).digest()
        even = [(int.from_bytes(half, "big") + 1) / (2**64 + 1) for half in (digest[:8], digest[8:])]
        return math.sqrt(-2 * math.log(even[0])) * math.cos(2 * math.pi * even[1])

    def _between(self, low: int, high: int) -> int:
        return low + self._below(high - low + 1)

    def _below(self, count: int) -> int:
        """Return the next number below `count`, by a 128-bit linear congruential generator (PCG64's multiplier)."""
        self._state = (self._state * 47026247687942121848144207491837523525 + 1) % 2**128
        return (self._state >> 64) % count


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `schema` with `$ref` followed and `allOf` merged."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        target: Any = root
        for step in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(step, {}) if isinstance(target, Mapping) else {}
        schema = target if isinstance(target, Mapping) else {}
    for part in schema.get("allOf") or ():
        schema = {**schema, **_resolved(part, root)}
    return schema


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the schema's type; of several types, the first that is not null."""
    kind = schema.get("type", "object" if "properties" in schema else "null")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    return str(kind)


def _variants(items: Any, root: Mapping[str, Any], prompt: str) -> list[Mapping[str, Any]]:
    """Return the element schemas of a batch: one for each alternative, or for each value of an enumerated identifier.

    Where the prompt gives a criterion a scale of its own, its scores keep to it.
    """
    if not isinstance(items, Mapping):
        return []
    items = _resolved(items, root)
    scales = {json.loads(name): (int(low), int(high)) for name, low, high in _CRITERION.findall(prompt)}
    alternatives = items.get("anyOf") or items.get("oneOf") or [items]
    variant_lists = [_forms_by_id(_resolved(alternative, root), scales) for alternative in alternatives]
    if len(variant_lists) == 1:
        return variant_lists[0]
    return [
        variant for variants, form in zip(variant_lists, alternatives, strict=True) for variant in variants or [form]
    ]


def _forms_by_id(form: Mapping[str, Any], scales: Mapping[str, tuple[int, int]]) -> list[Mapping[str, Any]]:
    """Return a schema for each value of the form's enumerated identifier."""
    properties = form.get("properties", {})
    for key, part in properties.items():
        choices = part.get("enum") if isinstance(part, Mapping) else None
        if choices and key.endswith("id"):
            return [
                {**form, "properties": {**properties, key: {"const": choice}, **_score_of(scales.get(choice))}}
                for choice in choices
            ]
    return []


def _score_of(scale: tuple[int, int] | None) -> dict[str, Any]:
    return {} if scale is None else {"score": {"type": "integer", "minimum": scale[0], "maximum": scale[1]}}


def _bound(schema: Mapping[str, Any], key: str, default: float) -> float:
    value = schema.get(key)
    if isinstance(value, int | float):
        return value
    described = _DESCRIBED.search(schema.get("description") or "")
    match = re.search(rf"\b{key}: (-?\d+)", described[0]) if described else None
    return int(match[1]) if match else default


def spoil(fault: str, reply: Any) -> str:
    """Return an answer's JSON with one mistake. `fault` is one of ANSWER_FAULTS; single and batched answers are
    accepted."""
    if fault == "chatter":
        return f"Here is my verdict:\n```json\n{json.dumps(reply)}\n```\nI hope it helps!"
    if fault == "null":
        return "null"
    entries = _entries(reply)
    entry = entries[0] if entries else {}
    match fault:
        case "out_of_range":
            key = _verdict_key(entry)
            entry[key] = {"label": "no such label", "answers": {"1000": True}}.get(key, 1_000_000)
        case "wrong_type":
            key = _verdict_key(entry)
            entry[key] = str(entry.get(key, 7)) if key == "score" else 7
        case "wrong_nonce":
            reply["nonce"] = "0" * 16
        case "missing":
            _remove_one(reply)
        case "duplicate":
            return _contradicted(reply)
        case "unknown":
            _rename(entry, reply)
    return json.dumps(reply)


def _entries(reply: Any) -> list[dict[str, Any]]:
    """Return every object with a verdict, at any depth."""
    if isinstance(reply, dict):
        entries = [reply] if reply.keys() & set(_VERDICTS) else []
        return entries + [entry for value in reply.values() for entry in _entries(value)]
    return [entry for value in reply for entry in _entries(value)] if isinstance(reply, list) else []


def _batch(reply: Any) -> list[Any] | None:
    """Return the list of a batch's entries; None if the answer is no batch."""
    values = reply.values() if isinstance(reply, dict) else ()
    lists = (value for value in values if isinstance(value, list) and _entries(value))
    return next(lists, None)


def _remove_one(reply: Any) -> None:
    batch = _batch(reply)
    if batch is not None:
        batch.pop()
    else:
        entry = _entries(reply)[0]
        entry.pop(_verdict_key(entry), None)


def _contradicted(reply: Any) -> str:
    """Return a batch with two opinions on one criterion, or a single opinion that gives its verdict twice."""
    batch = _batch(reply)
    if batch is None:
        return json.dumps(reply).removesuffix("}") + f', "{_verdict_key(reply)}": 1}}'
    key = _verdict_key(batch[0])
    other = batch[0]["score"] + 1 if key == "score" else None
    batch.append({**batch[0], key: other})
    return json.dumps(reply)


def _verdict_key(entry: Mapping[str, Any]) -> str:
    return next((key for key in _VERDICTS if key in entry), "score")


def _rename(entry: dict[str, Any], reply: Any) -> None:
    ids = [key for key in entry if key.endswith("id")]
    if ids:
        entry[ids[0]] = "no-such-criterion"
    else:
        reply["no_such_key"] = 1
