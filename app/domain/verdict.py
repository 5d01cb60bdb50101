"""Reads a judge's answer: strictly, within bounds, and always by the same rules.

Finding the answer (`Malformed` if it cannot be found):

1. More than `MAX_ANSWER_CHARS` characters are no answer. White space and a byte order mark around it are nothing.
2. In the structured channel the whole text must be one JSON object that carries the call's nonce: what fits the schema
   may still be the answer to another call.
3. Elsewhere the answer is the one outermost JSON object that carries the call's nonce, whatever stands around it: a
   code fence, chat, objects without the nonce or with another, and up to 99 broken ones. Several such objects count as
   one if they are equal, else the answer is ambiguous.

Reading an opinion (malformed, or corrupt in a batch, unless all hold):

4. The keys are `argument`, `cited_evidence`, `score` (and `criterion_id` in a batch, else `nonce`), all of them, once.
   In place of `score` stands `label` on a scale of labels or preferences, `answers` on a checklist and for criteria of
   the item.
5. `score` is a whole number on the dimension's scale. 7.0 is 7, as JSON Schema's "integer" has it; "7", true, null,
   7.0000001, NaN, 1e999 and numbers of thousands of digits are no scores. `label` is one of the scale's as it is
   written there: upper and lower case differ, white space counts, only Unicode's two ways to write one letter do not.
   `answers` is an object with one key for each question, its number, and true or false under it; of criteria some may
   lack, or have anything else under them: such have no answer, but one at least must have one. A panel's chief has the
   key `dissent` as well, a text that may be empty.
6. `argument` is a text that is not blank, `cited_evidence` a list of texts, blank ones left out, both within bounds.
   Both are cleaned (app/domain/text.py), so that no store, file or terminal chokes on what is kept.

A batch is an object with a list `opinions`; other keys beside it are ignored. Entries whose `criterion_id` was not
asked for are ignored, their order means nothing. A dimension is accepted if it has an entry, and all its entries are
valid and equal; it is corrupt if it has entries otherwise, and missing if it has none.

What counts as JSON is said at `loads`.

A judge with `score_from: logprobs` has the mean over all scores that it might have written in place of the one that it
has written, by the probabilities of the tokens there (`ScoreTokens`). Its answer is accepted by the rules above first.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from dicast.app.domain.dimension import Attained, Dimension, Scale, attained
from dicast.app.domain.text import clean, excerpt

MAX_DEPTH = 32
MAX_DIGITS = 40
MAX_BROKEN = 100
"""The most broken objects that are tolerated: each error of the library counts the lines before it, so this keeps time
linear in the text."""

_SPACE = " \t\r\n"
_OBJECT = re.compile(r'\{[ \t\r\n]*+["}]')


class JsonError(ValueError):
    """The text is no JSON, or exceeds the bounds. The message never quotes the text; `position` is in characters."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason.removesuffix(' at')} at character {position}")
        self.position = position


@dataclass(frozen=True, slots=True)
class Flaw:
    """A placeholder for a value that cannot be relied on."""

    reason: str


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | Flaw | None"


@dataclass(frozen=True, slots=True)
class JsonObject:
    """One outermost object in a longer text, its source, and where that begins, in characters."""

    value: Json
    source: str
    start: int


def loads(text: str) -> Json:
    """Parse the one JSON value in `text`, after an optional byte order mark. Raises `JsonError`.

    JSON is as RFC 8259 has it, read by the standard library within bounds, with what it would let pass made visible:

    * nesting deeper than `MAX_DEPTH` is refused;
    * a number is an `int` if it is mathematically whole (`7`, `7.0`, `70e-1`, as JSON Schema's "integer" has it), else
      a `float`, so that 7.0000000000000000001 never rounds to 7;
    * what is well-formed but cannot be trusted becomes a `Flaw` in its place, and the rest stays readable: an object
      with a duplicate key, a number of more than `MAX_DIGITS` digits, and the NaN and Infinity that Python writes.

    Strings may hold lone surrogates and NUL, which JSON allows as escapes: see `dicast.app.domain.text.clean`.
    """
    body = text.removeprefix("\ufeff").strip(_SPACE)
    value, end = _decode(body, 0)
    if end != len(body):
        raise JsonError("more than one value", end)
    return value


def outermost_objects(text: str) -> Iterator[JsonObject]:
    """Yield the JSON objects in a text that may hold anything else, in order, none of them inside another.

    What opens like an object and is none (code, a set, an unfinished answer) is skipped up to where it ceases to be
    JSON, so that no character is read twice; the search ends after `MAX_BROKEN` of them.
    """
    start = broken = 0
    while broken < MAX_BROKEN and (opening := _OBJECT.search(text, start)):
        try:
            value, end = _decode(text, opening.start())
        except JsonError as error:
            start, broken = max(error.position, opening.start() + 1), broken + 1
        else:
            yield JsonObject(value, text[opening.start() : end], opening.start())
            start = end


def _decode(text: str, start: int) -> tuple[Json, int]:
    """Return the value that begins at `start`, and the position after it."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.pos) from None
    except RecursionError:
        raise JsonError(f"nested deeper than {MAX_DEPTH}", len(text)) from None
    level, depth = [value], 0
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise JsonError(f"nested deeper than {MAX_DEPTH}", end)
        level = [inner for node in level for inner in (node.values() if isinstance(node, dict) else node)]
    return value, end


def _object(pairs: list[tuple[str, Json]]) -> Json:
    value = dict(pairs)
    return value if len(value) == len(pairs) else Flaw("an object has a key twice")


def _number(literal: str) -> int | float | Flaw:
    too_long = Flaw(f"a number has more than {MAX_DIGITS} digits")
    if len(literal) > MAX_DIGITS:
        return too_long
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits, shift = int(whole + fraction), int(exponent or 0) - len(fraction)
    if digits == 0:
        return 0
    if shift >= 0:
        return too_long if len(str(abs(digits))) + shift > MAX_DIGITS else int(digits * 10**shift)
    if -shift <= MAX_DIGITS and digits % 10**-shift == 0:
        return int(digits // 10**-shift)
    return float(literal)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_number,
    parse_float=_number,
    parse_constant=lambda name: Flaw(f"{name} is no JSON number"),
)


MAX_ANSWER_CHARS = 4_000_000
MAX_ARGUMENT_CHARS = 20_000
MAX_QUOTE_CHARS = 5_000
MAX_QUOTES = 50
RAW_CHARS = 500
UNKNOWN_REPORTED = 5
"""The most entries of one answer with unknown ids that are reported."""

_ARGUED_KEYS = frozenset({"argument", "cited_evidence"})


@dataclass(frozen=True, slots=True)
class Judgment:
    """One accepted opinion. Its score is on the scale, and its texts are clean.

    `label` is what the score means on a scale with labels, `answers` are those of a checklist: the score is the number
    of true ones. Of an item's own criteria some `answers` may be None, and `attained` are the bounds that they allow.
    `expected` is the expected score over the answer's tokens, if the judge's score is to be that.
    """

    score: int
    argument: str
    cited_evidence: tuple[str, ...]
    label: str | None = None
    answers: tuple[bool | None, ...] | None = None
    dissent: str | None = None
    expected: float | None = None
    attained: Attained | None = None

    @property
    def unanswered(self) -> int:
        """The number of the item's criteria that have no answer."""
        return self.answers.count(None) if self.attained is not None and self.answers is not None else 0


@dataclass(frozen=True, slots=True)
class Malformed:
    """The answer is no opinion; `reason` is one line and safe to log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A discarded part of a batched answer, or all of it (`dimension_id` None).

    `raw` is what the judge sent, for the log: one line, unprintable characters escaped, cut to about `RAW_CHARS`.
    """

    dimension_id: str | None
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class BatchReading:
    """The opinions in a batched answer. Every dimension asked for is accepted, missing, or named in `corrupt`."""

    accepted: dict[str, Judgment]
    missing: list[str]
    corrupt: list[Corrupt]


class _Refused(ValueError):
    """Carries the reason from the rule that rejects an answer to the function that reports it."""


def read_single(
    text: str, *, structured: bool, nonce: str, scale: Scale, dissent: bool = False
) -> Judgment | Malformed:
    """Read one dimension's answer; with `dissent`, a panel chief's. Never raises, whatever the text."""
    try:
        document = _find(text, structured=structured, nonce=nonce)
        return _verdict({key: value for key, value in document.items() if key != "nonce"}, scale, dissent)
    except _Refused as refused:
        return Malformed(str(refused))


def read_batch(
    text: str, *, structured: bool, nonce: str, dimensions: Sequence[Dimension], dissent: bool = False
) -> BatchReading:
    """Read a batched answer; with `dissent`, a panel chief's. Never raises, whatever the text."""
    try:
        entries = _find(text, structured=structured, nonce=nonce).get("opinions")
        if not isinstance(entries, list):
            raise _Refused("opinions must be a list")
    except _Refused as refused:
        return BatchReading({}, [d.id for d in dimensions], [Corrupt(None, str(refused), excerpt(text, RAW_CHARS))])

    by_id = {dimension.id: dimension for dimension in dimensions}
    by_criterion: dict[str, list[dict[str, Json]]] = {}
    corrupt: list[Corrupt] = []
    unknown = 0
    for entry in entries:
        try:
            criterion_id, opinion = _split_entry(entry)
        except _Refused as refused:
            corrupt.append(Corrupt(None, str(refused), excerpt(_dumped(entry), RAW_CHARS)))
        else:
            if criterion_id in by_id:
                by_criterion.setdefault(criterion_id, []).append(opinion)
            elif (unknown := unknown + 1) <= UNKNOWN_REPORTED:
                raw = _dumped({"criterion_id": criterion_id, **opinion})
                corrupt.append(Corrupt(None, "an unknown criterion_id: discarded", excerpt(raw, RAW_CHARS)))

    accepted: dict[str, Judgment] = {}
    for criterion_id, opinions in by_criterion.items():
        try:
            accepted[criterion_id] = _agreed(opinions, by_id[criterion_id].scale, dissent)
        except _Refused as refused:
            raw = " ".join(_dumped({"criterion_id": criterion_id, **opinion}) for opinion in opinions)
            corrupt.append(Corrupt(criterion_id, str(refused), excerpt(raw, RAW_CHARS)))
    return BatchReading(accepted, [d.id for d in dimensions if d.id not in by_criterion], corrupt)


def _find(text: str, *, structured: bool, nonce: str) -> dict[str, Json]:
    """Find the answer by rules 1 to 3."""
    if len(text) > MAX_ANSWER_CHARS:
        raise _Refused(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
    if not structured:
        return _object_with_nonce(nonce, text)
    try:
        document = loads(text)
    except JsonError as error:
        raise _Refused(f"the answer is no JSON object: {error}") from None
    if isinstance(document, Flaw):
        raise _Refused(document.reason)
    if not isinstance(document, dict):
        raise _Refused("the answer is no JSON object")
    if "nonce" not in document:
        raise _Refused("the answer carries no nonce")
    if document["nonce"] != nonce:
        raise _Refused("the answer carries another nonce")
    return document


def _object_with_nonce(nonce: str, text: str) -> dict[str, Json]:
    """Return the one object with this nonce. A flawed object counts if its source contains the nonce."""
    matches: dict[str, dict[str, Json]] = {}
    for candidate in outermost_objects(text) if nonce in text else ():
        if isinstance(candidate.value, Flaw):
            if nonce in candidate.source:
                raise _Refused(candidate.value.reason)
        elif isinstance(candidate.value, dict) and candidate.value.get("nonce") == nonce:
            matches[_dumped(candidate.value)] = candidate.value
    if len(matches) != 1:
        raise _Refused("different objects carry the nonce" if matches else "no JSON object carries the nonce")
    return matches.popitem()[1]


def _split_entry(entry: Json) -> tuple[str, dict[str, Json]]:
    """Split an entry of a batch into its criterion's id and the rest."""
    if isinstance(entry, Flaw):
        raise _Refused(entry.reason)
    if not isinstance(entry, dict):
        raise _Refused("an opinion must be an object")
    opinion = dict(entry)
    criterion_id = opinion.pop("criterion_id", None)
    if not isinstance(criterion_id, str):
        raise _Refused("criterion_id must be text")
    return criterion_id, opinion


def _agreed(opinions: Sequence[dict[str, Json]], scale: Scale, dissent: bool) -> Judgment:
    verdicts = {_verdict(opinion, scale, dissent) for opinion in opinions}
    if len(verdicts) != 1:
        raise _Refused("several opinions on one criterion disagree")
    return verdicts.pop()


def _verdict(opinion: dict[str, Json], scale: Scale, dissent: bool) -> Judgment:
    """Read an opinion by rules 4 to 6."""
    key = "label" if scale.options else "answers" if scale.questions else "score"
    keys = {*_ARGUED_KEYS, key, *(("dissent",) if dissent else ())}
    if missing := keys - opinion.keys():
        raise _Refused(f"lacks {', '.join(sorted(missing))}")
    if unknown := opinion.keys() - keys:
        raise _Refused(f"has the unknown key {excerpt(min(unknown), 60)!r}")
    answers = _answers(opinion[key], scale) if scale.questions else None
    reached = (
        attained([criterion.points for criterion in scale.item_criteria], answers)
        if answers and scale.item_criteria
        else None
    )
    if answers is not None:
        score = sum(map(bool, answers)) if reached is None else reached.score
    else:
        score = _label(opinion[key], scale) if scale.options else _score(opinion[key], scale)
    return Judgment(
        score=score,
        argument=_argument(opinion["argument"]),
        cited_evidence=_evidence(opinion["cited_evidence"]),
        label=scale.label(score),
        answers=answers,
        dissent=_text(opinion["dissent"], "dissent", MAX_ARGUMENT_CHARS) if dissent else None,
        attained=reached,
    )


def _label(value: Json, scale: Scale) -> int:
    if not isinstance(value, str):
        raise _Refused("label must be text")
    score = scale.score_of(value)
    if score is None:
        raise _Refused(f"label must be one of the scale's, got {excerpt(value, 60)!r}")
    return score


def _answers(value: Json, scale: Scale) -> tuple[bool | None, ...]:
    if not isinstance(value, dict):
        raise _Refused("answers must be an object")
    keys = [str(number) for number in range(1, len(scale.questions) + 1)]
    if unknown := value.keys() - set(keys):
        raise _Refused(f"answers must have the keys 1 to {len(keys)}, got {excerpt(min(unknown), 60)!r}")
    if scale.item_criteria:
        entries = [value.get(key) for key in keys]
        if not any(isinstance(entry, bool) for entry in entries):
            raise _Refused(f"none of the {len(keys)} criteria has an answer")
        return tuple([entry if isinstance(entry, bool) else None for entry in entries])
    if len(value) < len(keys):
        raise _Refused(f"answers must have the keys 1 to {len(keys)}")
    if not all(isinstance(entry, bool) for entry in value.values()):
        raise _Refused("each of the answers must be true or false")
    return tuple(value[key] is True for key in keys)


def _score(value: Json, scale: Scale) -> int:
    if isinstance(value, Flaw):
        raise _Refused(f"score: {value.reason}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Refused("score must be a whole number")
    if not scale.min <= value <= scale.max:
        raise _Refused(f"score must be within {scale.min}..{scale.max}, got {value}")
    return value


def _argument(value: Json) -> str:
    argument = _text(value, "argument", MAX_ARGUMENT_CHARS)
    if not argument:
        raise _Refused("argument is blank")
    return argument


def _evidence(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Refused("cited_evidence must be a list")
    if len(value) > MAX_QUOTES:
        raise _Refused(f"cited_evidence has more than {MAX_QUOTES} quotes")
    quotes = (_text(quote, "cited_evidence", MAX_QUOTE_CHARS) for quote in value)
    return tuple(quote for quote in quotes if quote)


def _text(value: Json, field: str, most: int) -> str:
    if not isinstance(value, str):
        raise _Refused(f"{field} must be text")
    if len(value) > most:
        raise _Refused(f"{field} is longer than {most} characters")
    return clean(value).strip()


def _dumped(value: Json) -> str:
    """Return the same text for equal values, whatever the order of their keys. True and 1 differ, as they do not in
    Python."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=lambda flaw: f"<{flaw.reason}>")


HELD_LEAST = 0.9
"""The share of the probability that the scale's values must hold at the place of the score. What is missing can then
move the expected score by at most a tenth of the scale."""
SUM_MOST = 1.01
"""Probabilities of alternatives may exceed 1 by this much, because they are rounded."""
_LEXEME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_DIGITS = re.compile(rb"([0-9]*)(.*)", re.DOTALL)
_SPACES = b" \t\r\n"
_NUMBER_ENDS = (b" ", b"\t", b"\r", b"\n", b",", b"}")


class Token(NamedTuple):
    """A token of an answer in bytes, and the probabilities of what could have stood in its place, itself included."""

    data: bytes
    chances: Mapping[bytes, float]


def chance_of(logprob: object) -> float | None:
    """Return the probability for a log probability; None for what is none, such as NaN. Minus infinity is 0."""
    if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not logprob < SUM_MOST - 1:
        return None
    return math.exp(min(logprob, 0.0))


@dataclass(frozen=True, slots=True)
class AsWritten:
    """No expected score can be had, and the score that the judge has written stands; `reason` is safe to log."""

    reason: str


class ScoreTokens:
    """Computes expected scores from the tokens of an answer that was accepted (app/domain/job.py says on which scales).

    The method is that of Y. Liu et al., "G-Eval: NLG Evaluation using GPT-4 with Better Human Alignment" (EMNLP 2023,
    arXiv 2303.16634), section 2: the sum of p(s) s over the scores s of the scale, with the probabilities of the tokens
    themselves where G-Eval has to estimate them by sampling. They are divided by what they sum to, since the tokens
    that an API tells are never all of them.

    The place of a score is found by parsing the answer; of equal entries the first counts, as the others only repeat
    it. A score that is written in several tokens is followed from token to token: what an API tells of the second one
    holds for the first one that was taken. What cannot be attributed to one value, such as "1" where a tokenizer writes
    digits one by one and both 1 and 10 may follow, counts as missing.
    """

    def __init__(self, text: str, tokens: Sequence[Token], *, structured: bool, nonce: str) -> None:
        self._text, self._tokens = text, tokens
        whole = b"".join(token.data for token in tokens)
        self._offset = whole.find(text.encode("utf-8", "surrogatepass")) if tokens else -1
        self._ends = list(accumulate(len(token.data) for token in tokens))
        self._spans = {} if self._offset < 0 else _score_spans(text, _answer_start(text, nonce, structured=structured))

    def expected(self, score: int, scale: Scale, criterion_id: str | None = None) -> float | AsWritten:
        """Return the expected score to four decimals, or why the written `score` stands; `criterion_id` names the entry
        of a batched answer."""
        if not self._tokens:
            return AsWritten("the answer came without log probabilities")
        if self._offset < 0:
            return AsWritten("the tokens are not those of the answer")
        span = self._spans.get(criterion_id)
        if span is None or self._text[slice(*span)] != str(score):
            return AsWritten("the score is not written as a plain whole number")
        at = self._offset + len(self._text[: span[0]].encode("utf-8", "surrogatepass"))
        first = bisect_right(self._ends, at)
        lead = self._tokens[first].data[: at - (self._ends[first - 1] if first else 0)]
        if sum(self._tokens[first].chances.values()) > SUM_MOST:
            return AsWritten("the probabilities at its place sum to more than 1")
        masses = _masses(self._tokens[first:], lead.strip(_SPACES), scale)
        share = sum(masses.values())
        if not share >= HELD_LEAST:
            return AsWritten(f"the scale's values hold {share:.2f} of the probability at its place, below {HELD_LEAST}")
        return round(sum(value * mass for value, mass in masses.items()) / share, 4)


def _answer_start(text: str, nonce: str, *, structured: bool) -> int:
    """Return where the accepted answer begins in a text, in characters."""
    if structured:
        return text.index("{")
    objects = outermost_objects(text)
    return next(o.start for o in objects if isinstance(o.value, dict) and o.value.get("nonce") == nonce)


def _score_spans(text: str, start: int) -> dict[str | None, tuple[int, int]]:
    """Return where the values of "score" stand, in characters, in the JSON object that begins at `start`: under None
    that of the object itself, and by `criterion_id` those of its opinions."""
    spans: dict[str | None, tuple[int, int]] = {}
    keys: list[str | None] = []  # of the open objects and lists, from the outermost
    entries: list[dict[str, Any]] = []
    is_key = False
    for lexeme in _LEXEME.finditer(text, start):
        match lexeme[0]:
            case "{" | "[" as opening:
                keys.append(None)
                entries.append({})
                is_key = opening == "{"
            case "}" | "]":
                keys.pop()
                entry = entries.pop()
                if "score" in entry and (not keys or (len(keys) == 2 and keys[0] == "opinions")):
                    spans.setdefault(entry.get("criterion_id") if keys else None, entry["score"])
                is_key = False
                if not keys:
                    break
            case ",":
                is_key = keys[-1] is not None
            case ":":
                is_key = False
            case word if is_key:
                keys[-1] = json.loads(word)
            case word:
                if keys[-1] == "score":
                    entries[-1]["score"] = lexeme.span()
                elif keys[-1] == "criterion_id":
                    entries[-1]["criterion_id"] = json.loads(word)
    return spans


def _masses(tokens: Sequence[Token], lead: bytes, scale: Scale) -> dict[int, float]:
    """Return the probability of each value of the scale, as far as it is known. `tokens` are those from the score on;
    the first one has `lead` before the number, and maybe white space."""
    values = {str(value).encode(): value for value in range(scale.min, scale.max + 1)}
    masses: dict[int, float] = defaultdict(float)
    written, weight, whole_numbers = b"", 1.0, False
    for place, token in enumerate(tokens):
        numbers = {data: _number_in(data, lead if place == 0 else None) for data in token.chances}
        if place == 0:
            whole_numbers = any(len(number[0]) > 1 for number in numbers.values() if number is not None)
        onward = None
        for data, number in numbers.items():
            if number is None or not (text := written + number[0]):
                continue
            chance = weight * token.chances[data]
            longer = [] if number[1] else [value for value in values if value.startswith(text) and value != text]
            if longer and data == token.data:
                onward = text, chance
            elif text in values and (not longer or whole_numbers):
                masses[values[text]] += chance
            elif len(longer) == 1 and text not in values:
                masses[values[longer[0]]] += chance
        if onward is None:
            break
        written, weight = onward
    return masses


def _number_in(data: bytes, lead: bytes | None) -> tuple[bytes, bool] | None:
    """Return the digits in a token that stands where a number begins (behind `lead`) or goes on (None), and whether the
    number ends in it; None if it is no part of a whole number there."""
    if lead is not None:
        data = data.lstrip(_SPACES)
        if not data.startswith(lead):
            return None
        data = data.removeprefix(lead).lstrip(_SPACES)
    digits, rest = _DIGITS.fullmatch(data).groups()  # type: ignore[union-attr]  # it matches everything
    if rest and not rest.startswith(_NUMBER_ENDS):
        return None
    return (digits, bool(rest)) if digits or (rest and lead is None) else None
