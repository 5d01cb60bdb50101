"""Prices and costs: exact, and never cheaper than they are."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.cost import BookLine, CostLine, JobCost, Spending, Sum, cost_of, met_words, read_books
from dicast.app.domain.opinion import CallUsage, Usage
from dicast.app.domain.price import (
    Bound,
    Place,
    Price,
    TokenRates,
    amount_of,
    bound_of_request,
    listed_price,
    picos,
    price_from_table,
    shown,
)

MINI = price_from_table({"input": 0.4, "output": 1.6, "cached_input": 0.1, "batch": 0.5}, "test")
PLACE = Place("openai", "gpt-4.1-mini", MINI)


def usage(whole: int, output: int, cached: int = 0, written: int = 0) -> Usage:
    return CallUsage(input_tokens=whole, output_tokens=output, cached_input_tokens=cached, cache_write_tokens=written)


def test_the_cost_of_a_call_is_exact() -> None:
    assert amount_of(MINI.cost(usage(1000, 100, cached=400))) == Decimal("0.00044")
    assert amount_of(MINI.cost(usage(1, 0))) == Decimal("0.0000004")


def test_cached_tokens_whose_price_nobody_told_cost_as_others_do() -> None:
    plain = price_from_table({"input": 3, "output": 15}, "test")
    assert plain.cost(usage(10, 0, cached=5, written=5)) == plain.cost(usage(10, 0))


def test_long_calls_cost_what_their_tier_says() -> None:
    price = Price(TokenRates(1, 10, 1, 1), tiers=((100, TokenRates(2, 20, 2, 2)), (200, TokenRates(3, 30, 3, 3))))
    assert [price.cost(usage(n, 1)) for n in (100, 101, 200, 201)] == [110, 222, 420, 633]
    assert Bound(5, 1).cost(price.highest) == 5 * 3 + 30


@given(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6),
    st.lists(st.integers(0, 10**7), min_size=4, max_size=4),
)  # fmt: skip
def test_no_call_costs_more_than_its_bound(
    plain: int, cached: int, written: int, output: int, rates: list[int]
) -> None:
    price = Price(TokenRates(*rates), tiers=((1000, TokenRates(*rates[::-1])),))
    whole = plain + cached + written
    assert price.cost(usage(whole, output, cached, written)) <= Bound(whole, output).cost(price.highest)


@pytest.mark.parametrize(
    "table, complaint",
    [
        ({"output": 1}, "input is missing"),
        ({"input": -1, "output": 1}, "input must be 0 or more"),
        ({"input": 0.1234567, "output": 1}, "input has more than 6 decimals"),
        ({"input": 1, "output": "x"}, "output is no number"),
        ({"input": 1, "output": 1, "batch": 0}, "batch is a share"),
    ],
)
def test_a_wrong_price_is_refused(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        price_from_table(table, "test")


def test_a_price_is_stored_and_read() -> None:
    price = Price(TokenRates(1, 2, 3, 4), "EUR", "2026-11-01", "x", ((5, TokenRates(6, 7, 8, 9)),), Decimal("0.5"))
    assert Place.from_dict(Place("p", "m", price).as_dict()) == Place("p", "m", price)
    assert Place.from_dict(Place("p", "m").as_dict()) == Place("p", "m")
    dear = Place("p", "m", replace(price, priority=Decimal(2)), "priority")
    assert Place.from_dict(dear.as_dict()) == dear


def test_the_service_that_answers_decides_the_price() -> None:
    price = Price(TokenRates(10, 20, 10, 10), batch=Decimal("0.5"), flex=Decimal("0.5"), priority=Decimal(2))
    usage = Usage(input_tokens=1)

    def cost(road: str, answered: str, asked: str = "") -> int:
        by = Place("p", "m", price, asked).price_by(road, answered)
        assert by is not None
        return by.cost(usage)

    assert [cost("online", told) for told in ("", "default", "flex", "priority", "scale")] == [10, 10, 5, 20, 10]
    assert [cost("flex", told) for told in ("", "default", "flex")] == [5, 10, 5]
    assert [cost("online", told, "priority") for told in ("", "default", "priority")] == [20, 10, 20]
    assert cost("flex", "", "priority") == 5, "a road takes the place of a pool's service"
    assert cost("batch", "default") == 5, "a batch's answers name the service without its discount"
    assert Place("p", "m", price).highest_by("flex") == (10, 20), "flex may be answered by the usual service"
    assert Place("p", "m", price, "priority").highest_by("online") == (20, 40)
    assert Place("p", "m", price, "auto").highest_by("online") == (20, 40), "the account may have priority"
    assert Place("p", "m", price, "auto").highest_by("batch") == (5, 10)
    assert (Place("p", "m").price_by("online"), Place("p", "m").highest_by("flex")) == (None, (0, 0))


def test_picos_are_whole() -> None:
    assert picos(Decimal("1.5")) == 1_500_000_000_000
    with pytest.raises(ValueError, match="12 decimals"):
        picos(Decimal("0.0000000000001"))


@pytest.mark.parametrize(
    "amount, text",
    [("12.345", "12.34 USD"), ("0", "0.00 USD"), ("0.0123456", "0.0123 USD"), ("0.00000044", "0.000000440 USD")],
)
def test_amounts_for_people(amount: str, text: str) -> None:
    assert shown(Decimal(amount), "USD") == text


def test_a_request_is_bounded_by_its_bytes() -> None:
    bound = bound_of_request(("abc", "äöü"), 1, 7)
    assert bound == Bound(3 + 6 + 1024 + 50_000, 7)


RECORD = {
    "state": "running", "b:0.0.20781:calls": "3", "b:0.0.20781:in": "1000", "b:0.0.20781:out": "100",
    "b:0.0.20781:spent": "560000000", "b:0.0.20781:unknown_calls": "1", "b:0.0.20781:unknown": "7",
    "b:1.0.20782:calls": "2", "b:1.0.20782:in": "10",
}  # fmt: skip


def test_books_are_read_by_judge_place_and_day() -> None:
    lines = read_books(RECORD, ["a", "b"], [[PLACE], [Place("local", "tiny")]])
    assert [(line.judge, line.day, line.spending.calls) for line in lines] == [
        ("a", "2026-11-24", 3), ("b", "2026-11-25", 2)
    ]  # fmt: skip
    cost = cost_of(lines, unreported=4)
    assert [(s.currency, s.spent, s.unknown) for s in cost.sums] == [("USD", Decimal("0.00056"), Decimal("7E-12"))]
    assert cost.lines[1].spent is None and cost.unpriced == ["local/tiny"]
    assert "unpriced calls of local/tiny" in cost.sentence() and "at most 4 calls" in cost.sentence()


@given(st.integers(0, 10**15), st.lists(st.integers(0, 1000), min_size=1, max_size=6))
def test_dimensions_add_up_to_what_was_spent(spent: int, tokens: list[int]) -> None:
    line = BookLine("a", PLACE, "2026-11-24", Spending(calls=1, spent=spent))
    answers = {("a", f"d{n}"): usage(count, 0) for n, count in enumerate(tokens)}
    parts = cost_of([line], answers).dimensions
    assert not sum(tokens) or picos(sum((part.spent for part in parts), Decimal(0))) == spent


def test_a_listed_price_is_exact_and_knows_its_variants() -> None:
    pytest.importorskip("genai_prices")
    price = listed_price("gpt-4.1-mini", "openai", None)
    assert price is not None and price.cost(usage(1000, 100, cached=400)) == MINI.cost(usage(1000, 100, cached=400))
    assert price.source.startswith("genai-prices ")
    assert listed_price("gpt-4.1-mini", None, "http://127.0.0.1:8000/v1") is None
    assert listed_price("no-such-model", "openai", None) is None


def cost_line(judge, spent="0.30", currency="USD"):
    line = CostLine.from_book(BookLine(judge, Place("p", "m"), "2026-11-24"))
    return line.model_copy(update={"spent": None if spent is None else Decimal(spent), "currency": currency})


def test_what_a_judge_has_cost_an_item():
    sums = [Sum(currency="USD", spent="1", unknown="0")]
    cost = JobCost(sums=sums, lines=[cost_line("a"), cost_line("a"), cost_line("b", "0.9")])
    assert cost.item_costs({"b": 30, "a": 20}, 2) == ([0.06, 0.06], "USD")
    assert cost.item_costs({"a": 20, "b": 0}, 2) is None
    assert cost.item_costs({"a": 20, "b": 3, "c": 1}, 2) is None
    unpriced = cost.model_copy(update={"lines": [cost_line("a"), cost_line("b", None)]})
    assert unpriced.item_costs({"a": 20, "b": 3}, 2) is None
    two = cost.model_copy(update={"sums": [*sums, Sum(currency="EUR", spent="1", unknown="0")]})
    assert two.item_costs({"a": 20, "b": 3}, 2) is None


def test_a_job_that_a_total_budget_ended_says_what_its_items_are():
    assert met_words("budget project:a%20b:USD") == "budget of project a b"
    assert met_words("max_cost") == "max_cost" and met_words(None) is None
    cost = JobCost(met="budget of project red")
    assert "the total budget of project red is spent" in cost.partial() and "no sample" in cost.partial()
    assert "random sample" in cost.model_copy(update={"max_calls": 3}).partial()
