from __future__ import annotations

import json
from copy import deepcopy

import jsonschema
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.prompt import answer_limits, single_schema
from dicast.app.domain.verdict import (
    MAX_ANSWER_CHARS,
    MAX_ARGUMENT_CHARS,
    MAX_QUOTE_CHARS,
    MAX_QUOTES,
    RAW_CHARS,
    BatchReading,
    Corrupt,
    Judgment,
    Malformed,
    read_batch,
    read_single,
)
from tests.domain.evil_answers import NONCE, OTHER, PLAIN, STRUCTURED, opinion, signed

SCALE = Scale()
DIMENSIONS = [
    Dimension(id="clarity", instructions="Is it clear?"),
    Dimension(id="truth", instructions="Is it true?", scale=Scale(min=0, max=3)),
    Dimension(id="style", instructions="Is it well written?"),
]


def check(got: Judgment | Malformed, wanted: int | str) -> None:
    if isinstance(wanted, int):
        assert isinstance(got, Judgment), got
        assert got.score == wanted and type(got.score) is int
    else:
        assert isinstance(got, Malformed), got
        assert got.reason.startswith(wanted)
        assert got.reason.isprintable() and len(got.reason) < 200


@pytest.mark.parametrize("body, wanted", [row[1:] for row in STRUCTURED], ids=[row[0] for row in STRUCTURED])
def test_structured_answers(body: str, wanted: int | str) -> None:
    check(read_single(body, structured=True, nonce=NONCE, scale=SCALE), wanted)


@pytest.mark.parametrize("body, wanted", [row[1:] for row in PLAIN], ids=[row[0] for row in PLAIN])
def test_plain_answers(body: str, wanted: int | str) -> None:
    check(read_single(body, structured=False, nonce=NONCE, scale=SCALE), wanted)


def storable(verdict: Judgment) -> None:
    """No store, JSON writer or column file chokes on what was accepted."""
    texts = [verdict.argument, *verdict.cited_evidence]
    orjson.dumps(texts)
    pa.array(texts, pa.string()).validate(full=True)
    assert not any(char < " " and char not in "\n\t" for text in texts for char in text)


def test_texts_are_cleaned_and_their_valid_parts_kept() -> None:
    answer = {"argument": " a\ud800b\x00c\r\nd\x1b[31m ", "cited_evidence": ["\x07", "q\udc00"], "score": 7}
    body = json.dumps({"nonce": NONCE, **answer})
    verdict = read_single(body, structured=True, nonce=NONCE, scale=SCALE)
    assert verdict == Judgment(7, "a\ufffdbc\nd[31m", ("q\ufffd",))
    storable(verdict)


@given(st.text(), st.booleans())
def test_no_text_crashes_the_reader(text: str, structured: bool) -> None:
    got = read_single(text, structured=structured, nonce=NONCE, scale=SCALE)
    assert isinstance(got, Malformed)
    batch = read_batch(text, structured=structured, nonce=NONCE, dimensions=DIMENSIONS)
    assert batch.accepted == {} and batch.missing == [d.id for d in DIMENSIONS]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NEARLY_OPINIONS = st.fixed_dictionaries(
    {},
    optional={
        "argument": st.text(st.characters(codec=None)) | JSON_VALUES,
        "cited_evidence": st.lists(st.text(st.characters(codec=None)), max_size=3) | JSON_VALUES,
        "score": st.integers(-1, 12) | st.sampled_from([7.0, 7.5, True]) | JSON_VALUES,
        "more": JSON_VALUES,
        "nonce": st.just(NONCE) | JSON_VALUES,
    },
)


@given(NEARLY_OPINIONS)
def test_the_reader_accepts_what_the_schema_accepts(answer: dict[str, object]) -> None:
    """Up to the lengths, which bind the model and not the reader, and blank texts."""
    schema = deepcopy(single_schema(SCALE, answer_limits(1024), NONCE))
    schema["properties"]["argument"] = {"type": "string", "maxLength": MAX_ARGUMENT_CHARS}
    schema["properties"]["cited_evidence"] = {"type": "array", "items": {"type": "string"}}
    valid = jsonschema.Draft202012Validator(schema).is_valid(answer)
    got = read_single(json.dumps(answer), structured=True, nonce=NONCE, scale=SCALE)
    if isinstance(got, Judgment):
        assert valid
        assert got.score == answer["score"]
        storable(got)
    elif valid:
        assert got.reason == "argument is blank"


@given(st.integers(1, 10), st.text(min_size=1), st.text(), st.text())
def test_a_signed_answer_is_found_in_any_chat(score: int, argument: str, before: str, behind: str) -> None:
    body = json.dumps({"nonce": NONCE, "argument": argument, "cited_evidence": [], "score": score})
    got = read_single(f"{before}\n{body}\n{behind}", structured=False, nonce=NONCE, scale=SCALE)
    assert isinstance(got, Malformed) or got.score == score
    if '{"' not in before and isinstance(got, Malformed):
        assert got.reason == "argument is blank"


@given(st.lists(st.tuples(st.integers(1, 10), st.sampled_from([NONCE, OTHER])), max_size=4))
def test_only_the_nonce_decides_which_object_is_the_answer(objects: list[tuple[int, str]]) -> None:
    text = " ".join(signed(opinion(score), nonce) for score, nonce in objects)
    ours = {score for score, nonce in objects if nonce == NONCE}
    got = read_single(text, structured=False, nonce=NONCE, scale=SCALE)
    if len(ours) == 1:
        assert isinstance(got, Judgment) and got.score in ours
    else:
        assert isinstance(got, Malformed)


def entry(criterion_id: object, score: object = 2, argument: str = "It holds.", **more: object) -> dict[str, object]:
    return {"criterion_id": criterion_id, "argument": argument, "cited_evidence": [], "score": score, **more}


def batch(*entries: object, **more: object) -> str:
    return json.dumps({"nonce": NONCE, "opinions": list(entries), **more})


def read(text: str, *, structured: bool = True) -> BatchReading:
    return read_batch(text, structured=structured, nonce=NONCE, dimensions=DIMENSIONS)


GOOD = [entry("clarity"), entry("truth"), entry("style")]

BATCHES: list[tuple[str, str, str, str, str]] = [
    # name, body, accepted, missing, corrupt ("?" where no dimension can be named)
    ("complete", batch(*GOOD), "clarity truth style", "", ""),
    ("reordered", batch(*GOOD[::-1]), "clarity truth style", "", ""),
    ("one missing", batch(*GOOD[:2]), "clarity truth", "style", ""),
    ("none", batch(), "", "clarity truth style", ""),
    ("unknown ids are discarded", batch(*GOOD, entry("beauty"), entry("")), "clarity truth style", "", "? ?"),
    ("some of many are told of", batch(*GOOD, *[entry("x")] * 99), "clarity truth style", "", "? ? ? ? ?"),
    ("id in capitals is unknown", batch(entry("Clarity"), *GOOD[1:]), "truth style", "clarity", "?"),
    ("equal duplicates are one", batch(*GOOD, *GOOD), "clarity truth style", "", ""),
    ("duplicates with other scores", batch(*GOOD, entry("style", 3)), "clarity truth", "", "style"),
    ("duplicates with other arguments", batch(*GOOD, entry("style", 2, "No.")), "clarity truth", "", "style"),
    ("duplicate of which one is corrupt", batch(*GOOD, entry("style", "2")), "clarity truth", "", "style"),
    ("score as text", batch(entry("clarity", "7"), *GOOD[1:]), "truth style", "", "clarity"),
    ("score true", batch(entry("clarity", True), *GOOD[1:]), "truth style", "", "clarity"),
    ("score null", batch(entry("clarity", None), *GOOD[1:]), "truth style", "", "clarity"),
    ("on another's scale only", batch(GOOD[0], entry("truth", 4), GOOD[2]), "clarity style", "", "truth"),
    ("zero, where the scale has it", batch(GOOD[0], entry("truth", 0), GOOD[2]), "clarity truth style", "", ""),
    ("zero, where it has not", batch(entry("clarity", 0), *GOOD[1:]), "truth style", "", "clarity"),
    ("beyond floats", batch(*GOOD).replace('"score": 2', '"score": 1e999', 1), "truth style", "", "clarity"),
    ("NaN", batch(*GOOD).replace('"score": 2', '"score": NaN', 1), "truth style", "", "clarity"),
    ("5,000 digits", batch(*GOOD).replace('"score": 2', f'"score": {"2" * 5000}', 1), "truth style", "", "clarity"),
    (
        "duplicate key in one entry",
        batch(*GOOD).replace('"score": 2', '"score": 2, "score": 3', 1),
        "truth style",
        "clarity",
        "?",
    ),
    ("unknown key in one entry", batch(entry("clarity", mood="good"), *GOOD[1:]), "truth style", "", "clarity"),
    ("nonce inside an entry", batch(entry("clarity", nonce=NONCE), *GOOD[1:]), "truth style", "", "clarity"),
    ("entry without an id", batch(opinion(), *GOOD), "clarity truth style", "", "?"),
    ("id as a number", batch(entry(7), *GOOD), "clarity truth style", "", "?"),
    ("entries of other types", batch(None, 7, "clarity", [], {}, *GOOD), "clarity truth style", "", "? ? ? ? ?"),
    ("lone surrogate in an id", batch(entry("clarity\ud800"), *GOOD), "clarity truth style", "", "?"),
    ("more keys beside the list", batch(*GOOD, summary="fine"), "clarity truth style", "", ""),
    ("another nonce", batch(*GOOD, nonce=OTHER), "", "clarity truth style", "?"),
    ("nonce null", batch(*GOOD, nonce=None), "", "clarity truth style", "?"),
    ("no nonce", json.dumps({"opinions": GOOD}), "", "clarity truth style", "?"),
    ("list twice", signed('{"opinions": [], "opinions": []}'), "", "clarity truth style", "?"),
    ("no list", signed('{"opinions": {"clarity": 7}}'), "", "clarity truth style", "?"),
    ("bare list", json.dumps(GOOD), "", "clarity truth style", "?"),
    ("a single answer", opinion(), "", "clarity truth style", "?"),
    ("cut", batch(*GOOD)[:-20], "", "clarity truth style", "?"),
    ("HTML", "<html></html>", "", "clarity truth style", "?"),
    ("empty", "", "", "clarity truth style", "?"),
    ("chat before it", "Here: " + batch(*GOOD), "", "clarity truth style", "?"),
    ("deep", batch(*GOOD)[:-2] + "," + "[" * 100_000, "", "clarity truth style", "?"),
]


@pytest.mark.parametrize("body, accepted, missing, corrupt", [r[1:] for r in BATCHES], ids=[r[0] for r in BATCHES])
def test_batches(body: str, accepted: str, missing: str, corrupt: str) -> None:
    got = read(body)
    assert set(got.accepted) == set(accepted.split())
    assert got.missing == missing.split()
    assert [c.dimension_id or "?" for c in got.corrupt] == corrupt.split()


def test_an_entry_with_an_unknown_id_is_told_with_its_content() -> None:
    (found,) = read(batch(*GOOD, entry("beauty", 7))).corrupt
    assert (found.dimension_id, found.reason) == (None, "an unknown criterion_id: discarded")
    assert '"beauty"' in found.raw and '"score": 7' in found.raw
    (long,) = read(batch(*GOOD, entry("beauty", 7, "x" * 100_000))).corrupt
    assert len(long.raw) < 2 * RAW_CHARS


def test_a_batch_outside_the_structured_channel_needs_the_nonce() -> None:
    assert set(read(f"Sure. {batch(*GOOD, nonce=NONCE)}", structured=False).accepted) == {"clarity", "truth", "style"}
    assert read(batch(*GOOD, nonce=OTHER), structured=False).accepted == {}


def test_raw_payloads_are_one_short_printable_line() -> None:
    body = batch(entry("clarity", "7", "\x1b[31m\n\u2028\u202e\ud800" * 1000))
    (corrupt,) = read(body).corrupt
    assert isinstance(corrupt, Corrupt)
    assert corrupt.raw.isprintable() and len(corrupt.raw) < RAW_CHARS + 50
    assert '"score": "7"' in read(batch(entry("clarity", "7"))).corrupt[0].raw
    assert read("<html>\n" * 1000).corrupt[0].raw.startswith("<html>\\u000a<html>")


@given(
    st.lists(
        st.builds(entry, st.sampled_from(["clarity", "truth", "style", "beauty"]), st.integers(-1, 12)) | JSON_VALUES,
        max_size=8,
    )
)
def test_every_dimension_is_accepted_missing_or_corrupt(entries: list[object]) -> None:
    got = read(batch(*entries))
    named = {c.dimension_id for c in got.corrupt} - {None}
    assert set(got.accepted) | set(got.missing) | named == {d.id for d in DIMENSIONS}
    assert len(got.accepted) + len(got.missing) + len(named) == len(DIMENSIONS)
    scales = {d.id: d.scale for d in DIMENSIONS}
    for criterion_id, verdict in got.accepted.items():
        assert scales[criterion_id].min <= verdict.score <= scales[criterion_id].max


def test_texts_may_be_exactly_as_long_and_as_many_as_allowed() -> None:
    answer = {
        "nonce": NONCE,
        "argument": "a" * MAX_ARGUMENT_CHARS,
        "cited_evidence": ["q" * MAX_QUOTE_CHARS] * MAX_QUOTES,
        "score": 7,
    }
    body = json.dumps(answer)
    got = read_single(body + " " * (MAX_ANSWER_CHARS - len(body)), structured=True, nonce=NONCE, scale=SCALE)
    assert got == Judgment(7, "a" * MAX_ARGUMENT_CHARS, ("q" * MAX_QUOTE_CHARS,) * MAX_QUOTES)


def test_a_reason_shows_no_more_than_60_characters_of_a_foreign_key() -> None:
    body = signed(opinion(**{"k" * 61: 1}))
    got = read_single(body, structured=True, nonce=NONCE, scale=SCALE)
    assert got == Malformed(f"has the unknown key {'k' * 60 + '... (61 characters)'!r}")


def test_the_first_of_several_unknown_keys_is_named() -> None:
    got = read_single(signed(opinion(b=1, a=1, c=1)), structured=True, nonce=NONCE, scale=SCALE)
    assert got == Malformed("has the unknown key 'a'")


TOLD: list[tuple[str, str | None, str]] = [
    # body, dimension, reason
    (signed('{"opinions": {}}'), None, "opinions must be a list"),
    (batch(*GOOD, nonce=OTHER), None, "the answer carries another nonce"),
    (json.dumps({"opinions": GOOD}), None, "the answer carries no nonce"),
    ("[]", None, "the answer is no JSON object"),
    (batch(7), None, "an opinion must be an object"),
    (batch(opinion()), None, "an opinion must be an object"),
    (batch(entry(7)), None, "criterion_id must be text"),
    (batch(entry("style"), entry("style", 3)), "style", "several opinions on one criterion disagree"),
    (batch(entry("style", "2")), "style", "score must be a whole number"),
    (batch(entry("truth", 4)), "truth", "score must be within 0..3, got 4"),
    (batch(entry("style", 2, " ")), "style", "argument is blank"),
    (batch(entry("style", 2, cited_evidence=[1])), "style", "cited_evidence must be text"),
    (batch(entry("style", 2, cited_evidence={})), "style", "cited_evidence must be a list"),
    (batch(entry("style", 2, argument=1)), "style", "argument must be text"),
    (batch(entry("style")).replace('"score": 2', '"score": 2, "score": 2'), None, "an object has a key twice"),
]


@pytest.mark.parametrize("body, dimension, reason", TOLD)
def test_what_is_discarded_of_a_batch_says_why(body: str, dimension: str | None, reason: str) -> None:
    (corrupt,) = read(body).corrupt
    assert (corrupt.dimension_id, corrupt.reason) == (dimension, reason)


@pytest.mark.parametrize(
    "body, reason",
    [
        ("{}", "no JSON object carries the nonce"),
        (signed(opinion(3)) + signed(opinion(9)), "different objects carry the nonce"),
    ],
)
def test_chat_without_one_answer_says_why(body: str, reason: str) -> None:
    assert read_single(body, structured=False, nonce=NONCE, scale=SCALE) == Malformed(reason)


def test_what_is_discarded_of_a_batch_is_shown_as_it_came() -> None:
    assert read(batch(entry("style", "2"), entry("style", 3))).corrupt == [
        Corrupt(
            "style",
            "score must be a whole number",
            '{"argument": "It holds.", "cited_evidence": [], "criterion_id": "style", "score": "2"} '
            '{"argument": "It holds.", "cited_evidence": [], "criterion_id": "style", "score": 3}',
        )
    ]
    assert read(batch({"b": "\u00e4", "a": 1})).corrupt[0].raw == '{"a": 1, "b": "\u00e4"}'
    assert read(batch(entry("style", 2)).replace(": 2", ": NaN")).corrupt[0].raw.endswith('"<NaN is no JSON number>"}')


@pytest.mark.parametrize(
    "body",
    ["<" * 1000, batch("x" * 1000), batch(entry("style", "2" * 1000))],
    ids=["no batch", "no opinion", "no score"],
)
def test_what_is_discarded_is_cut_for_the_log(body: str) -> None:
    (corrupt,) = read(body).corrupt
    head, note = corrupt.raw.split("... (")
    assert len(head) == RAW_CHARS and note.endswith(" characters)")
