"""The expected score of an answer, by the probabilities of the tokens at the place of its score."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.dimension import Scale
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.verdict import AsWritten, ScoreTokens, Token, chance_of

NONCE = "5f0c2a9be1d47783"
FIVE, TEN = Scale(min=1, max=5), Scale()


def sure(text: str) -> list[Token]:
    return [Token(part.encode(), {part.encode(): 1.0}) for part in text]


def token(text: str, chances: Mapping[str, float]) -> Token:
    return Token(text.encode(), {alternative.encode(): chance for alternative, chance in chances.items()})


def answer(score: object = 4, **more: object) -> str:
    return json.dumps({"nonce": NONCE, "argument": "So.", "cited_evidence": [], "score": score, **more})


def tokens_of(text: str, *at_score: Token, mark: str = '"score": ') -> list[Token]:
    """The answer's tokens; those at the last score are given."""
    before, _, rest = text.rpartition(mark)
    return [*sure(before + mark), *at_score, *sure(rest[sum(len(each.data) for each in at_score) :])]


def expected(
    text: str, tokens: Sequence[Token], score: int, scale: Scale, *, structured: bool = True, of: str | None = None
) -> Any:
    return ScoreTokens(text, tokens, structured=structured, nonce=NONCE).expected(score, scale, of)


def reason(text: str, tokens: Sequence[Token], score: int = 4, scale: Scale = FIVE) -> str:
    found = expected(text, tokens, score, scale)
    assert isinstance(found, AsWritten), found
    return found.reason


def test_the_score_is_the_mean_over_the_scale() -> None:
    four = token("4", {"4": 0.6, "5": 0.3, "3": 0.1})
    assert expected(answer(), tokens_of(answer(), four), 4, FIVE) == pytest.approx(4.2)


def test_what_is_missing_is_divided_among_what_is_told() -> None:
    four = token("4", {"4": 0.6, "5": 0.35, '"': 0.02, "6": 0.03})
    assert expected(answer(), tokens_of(answer(), four), 4, FIVE) == round((4 * 0.6 + 5 * 0.35) / 0.95, 4)


def test_below_nine_tenths_the_written_score_stands() -> None:
    text = answer()
    assert "0.89 of the probability" in reason(text, tokens_of(text, token("4", {"4": 0.5, "5": 0.39})))
    assert expected(text, tokens_of(text, token("4", {"4": 0.5, "5": 0.4})), 4, FIVE) == pytest.approx(4.4444)


@pytest.mark.parametrize(
    "chances",
    [{" 4": 0.6, " 5": 0.4}, {" 4": 0.6, "5": 0.4}, {" 4": 0.3, "4": 0.3, "5\n": 0.2, " 5}": 0.2}],
    ids=["a space before", "with and without", "two ways to write one"],
)
def test_white_space_is_no_part_of_a_number(chances: dict[str, float]) -> None:
    text = answer()
    tokens = [*sure(text[: text.index(" 4}")]), token(" 4", chances), *sure("}")]
    assert expected(text, tokens, 4, FIVE) == pytest.approx(4.4)


def test_what_stands_before_the_number_in_its_token_is_the_same_in_others() -> None:
    text = answer().replace(": 4}", ":4}")
    tokens = [*sure(text[: text.index(":4}")]), token(":4", {":4": 0.55, ":5": 0.4, "5": 0.05}), *sure("}")]
    assert expected(text, tokens, 4, FIVE) == round((4 * 0.55 + 5 * 0.4) / 0.95, 4)


def test_ten_in_one_token_and_one_are_two_values() -> None:
    ten = token("10", {"10": 0.5, "1": 0.25, "9": 0.25})
    assert expected(answer(10), tokens_of(answer(10), ten), 10, TEN) == pytest.approx(0.5 * 10 + 0.25 + 0.25 * 9)
    one = token("1", {"10": 0.5, "1": 0.25, "9": 0.25})
    rest = token("}", {"}": 0.9, "\n": 0.1})
    assert expected(answer(1), tokens_of(answer(1), one, rest), 1, TEN) == pytest.approx(7.5)


def test_digits_one_by_one_are_followed() -> None:
    """1 is followed by 0, or ends: what is told of the second token shares the first one's probability out."""
    first, second = token("1", {"1": 0.5, "9": 0.5}), token("0", {"0": 0.8, "}": 0.2})
    assert expected(answer(10), tokens_of(answer(10), first, second), 10, TEN) == pytest.approx(4.5 + 0.5 * 8.2)


def test_digits_of_a_path_that_was_not_taken_are_missing() -> None:
    """Whether 1 would have become 10 nobody tells, so little of it may be missing and no more."""
    text = answer(9)
    assert expected(text, tokens_of(text, token("9", {"9": 0.95, "1": 0.05})), 9, TEN) == 9.0
    assert "hold 0.80" in reason(text, tokens_of(text, token("9", {"9": 0.8, "1": 0.2})), 9, TEN)


def test_a_prefix_of_one_value_alone_is_that_value() -> None:
    text, scale = answer(9), Scale(min=5, max=10)
    assert expected(text, tokens_of(text, token("9", {"9": 0.5, "1": 0.5})), 9, scale) == 9.5


def test_the_place_is_found_by_parsing() -> None:
    """Scores that the argument speaks of, and those in objects that are no answer, are not it."""
    text = answer(argument='They would say {"score": 1}, or "score": 2, and more }{ "', cited_evidence=['"score": 3'])
    four = token("4", {"4": 0.5, "5": 0.5})
    tokens = [*sure(text[: text.rindex("4")]), four, *sure("}")]
    assert expected(text, tokens, 4, FIVE) == 4.5
    chat = f'{{"score": 1}} So:\n```json\n{text}\n```\nor {{"nonce": "0", "score": 2}}'
    place = chat.index(text) + text.rindex("4")
    tokens = [*sure(chat[:place]), four, *sure(chat[place + 1 :])]
    assert expected(chat, tokens, 4, FIVE, structured=False) == 4.5


def test_each_entry_of_a_batch_has_its_own_place() -> None:
    entries = [{"criterion_id": name, "argument": "So.", "score": score} for name, score in (("b", 2), ("a", 3))]
    text = json.dumps({"score": 5, "opinions": entries, "nonce": NONCE})
    at_b, at_a = text.index("2}"), text.index("3}")
    tokens = [
        *sure(text[:at_b]), token("2", {"2": 0.5, "1": 0.5}), *sure(text[at_b + 1 : at_a]),
        token("3", {"3": 0.9, "5": 0.1}), *sure(text[at_a + 1 :]),
    ]  # fmt: skip
    places = ScoreTokens(text, tokens, structured=True, nonce=NONCE)
    assert (places.expected(2, FIVE, "b"), places.expected(3, FIVE, "a")) == (1.5, 3.2)
    assert isinstance(places.expected(3, FIVE, "c"), AsWritten)


def test_tokens_around_the_answer_and_parts_of_characters_do_not_matter() -> None:
    text = answer(argument="Größe")
    data = json.dumps(json.loads(text), ensure_ascii=False)
    before, _, after = data.rpartition("4")
    parts = [Token(bytes([byte]), {bytes([byte]): 1.0}) for byte in before.encode()]
    tokens = [*sure("<think>"), *parts, token("4", {"4": 0.5, "5": 0.5}), *sure(after), *sure("<|end|>")]
    assert expected(data, tokens, 4, FIVE) == 4.5


def test_why_the_written_score_stands() -> None:
    text, four = answer(), token("4", {"4": 1.0})
    assert "without log probabilities" in reason(text, [])
    assert "not those of the answer" in reason(text, tokens_of(answer(3), token("3", {"3": 1.0})))
    assert "sum to more than 1" in reason(text, tokens_of(text, token("4", {"4": 0.9, "5": 0.2})))
    assert "hold 0.00" in reason(text, tokens_of(text, token("4", {"4": 0.0})))
    float_text = answer(4.0)
    assert "plain whole number" in reason(float_text, tokens_of(float_text, four))


@pytest.mark.parametrize(
    "logprob, chance",
    [(0, 1.0), (-math.inf, 0.0), (-9999.0, 0.0), (math.log(0.25), 0.25), (1e-7, 1.0), (math.nan, None),
     (math.inf, None), (0.5, None), (None, None), ("-1", None), (True, None), (False, None)],
)  # fmt: skip
def test_probabilities_are_read_or_left_out(logprob: object, chance: float | None) -> None:
    found = chance_of(logprob)
    assert found is None if chance is None else found == pytest.approx(chance)


@given(st.data())
def test_any_distribution_and_any_tokens_around_it(data: st.DataObject) -> None:
    """Whatever the scale, the probabilities, and the tokens into which the rest of the answer is cut."""
    low = data.draw(st.integers(0, 20))
    scale = Scale(min=low, max=low + data.draw(st.integers(1, 30)))
    values = range(scale.min, scale.max + 1)
    weights = data.draw(st.lists(st.floats(0, 1), min_size=len(values), max_size=len(values)).filter(sum))
    chances = [weight / sum(weights) for weight in weights]
    score = data.draw(st.sampled_from(values))
    text = answer(score, argument=data.draw(st.text(min_size=1)))
    place = text.rindex(str(score))
    cuts = sorted(data.draw(st.sets(st.integers(0, place))) | {0, place})
    before = [text[a:b] for a, b in pairwise(cuts)]
    at = token(str(score), {str(value): chance for value, chance in zip(values, chances, strict=True)})
    tokens = [*(token(part, {part: 1.0}) for part in before), at, token("}", {"}": 1.0})]
    found = expected(text, tokens, score, scale)
    wanted = sum(value * chance for value, chance in zip(values, chances, strict=True))
    assert found == pytest.approx(wanted, abs=1e-4)


def a_job(**more: Any) -> dict[str, Any]:
    return {
        "items": [{"id": "a", "text": "t"}],
        "agents": [{"name": "j", "score_from": "logprobs"}, {"name": "k"}],
        "dimensions": [{"id": "d", "instructions": "Good?"}],
        **more,
    }


@pytest.mark.parametrize(
    "more, why",
    [
        ({"dimensions": [{"id": "d", "instructions": "?", "scale": "pass_fail"}]}, "'d' has one of labels"),
        ({"dimensions": [{"id": "d", "instructions": "?", "scale": {"checklist": ["A?", "B?"]}}]}, "of checklist"),
        ({"dimensions": [{"id": "d", "instructions": "?", "scale": {"min": -1, "max": 1}}]}, "'d' has -1 to 1"),
        ({"dimensions": [{"id": "d", "instructions": "?", "scale": {"min": 0, "max": 1000}}]}, "'d' has 0 to 1000"),
        ({"question": {"mean_at_least": 5}}, "a question is answered by the scores that judges write"),
        ({"panel": "majority"}, r"panel majority \(d\) goes by whole scores"),
        ({"panel": "dawid_skene"}, r"panel dawid_skene \(d\) goes by whole scores"),
        ({"panel": {"combine": "mean", "escalate": {"difference": 2}}}, r"panel.escalate \(d\) goes by whole scores"),
    ],
)
def test_what_needs_whole_scores_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"agents: 'j' has score_from: 'logprobs'.*{why}"):
        EvaluationJob.model_validate(a_job(**more))


def test_a_verdict_by_majority_needs_no_whole_scores() -> None:
    job = a_job(panel={"combine": "majority", "threshold": 5}, dimensions=[
        {"id": "d", "instructions": "?", "scale": {"min": 0, "max": 999}}])  # fmt: skip
    assert EvaluationJob.model_validate(job).agents[0].score_from == "logprobs"
