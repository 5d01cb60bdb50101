"""Quotes: what is predicted from a pilot, how far that may be off, and what ends a job before."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from statistics import fmean, stdev
from typing import Any

import pytest

from dicast.app.domain.price import PICO, Place, price_from_table
from dicast.app.domain.quote import (
    Cell,
    PoolLoad,
    Quote,
    QuotedSum,
    TakenTokens,
    expected_calls,
    lines_of,
    money_of,
    spread,
    sums_of,
    time_of,
    tokens_of,
    with_cap,
    with_range,
)
from lab.statistics.quotes import KINDS, PILOT_CALLS, run

PRICED = Place("pool", "model", price_from_table({"input": 1, "output": 10, "cached_input": 0.5, "batch": 0.5}, "test"))


def cell(**more: Any) -> Cell:
    fields = {"judge": "a", "dimension": "d", "place": PRICED, "units": 100, "calls": 100.0, "bytes": 100_000.0}
    return Cell(**{**fields, "max_output": 1000, **more})


def item(size: float, inputs: float, outputs: float) -> dict[tuple[str, str], TakenTokens]:
    return {("a", "d"): TakenTokens(1, size, inputs, outputs)}


def chance() -> random.Random:
    return random.Random(1)


def test_input_follows_the_bytes_and_output_the_units() -> None:
    sample = [item(500, 100, 20), item(1500, 300, 40)]
    tokens = tokens_of(cell(), sample)
    assert (tokens.input, tokens.output) == (pytest.approx(20_000), pytest.approx(3000))
    money = money_of([cell()], sample, chance())
    assert money.expected == pytest.approx((20_000 + 10 * 3000) * PICO / 10**6)


def test_known_inputs_are_no_uncertainty() -> None:
    """Texts of any length: where tokens are in proportion to bytes, the interval is that of the outputs alone."""
    even = [item(size, size / 5, 30) for size in (10, 200, 3000, 40_000, 5, 700)]
    money = money_of([cell()], even, chance())
    assert money.low == pytest.approx(money.expected) == money.high
    uneven = [item(size, size / 5, 30 + more) for size, more in zip((10, 200, 3000, 40_000), (0, 1, 2, 3), strict=True)]
    money = money_of([cell()], uneven, chance())
    assert money.low is not None and money.high is not None
    assert money.low < money.expected < money.high < 1.2 * money.expected


def test_a_rest_that_is_over_is_certain_and_a_single_item_tells_nothing() -> None:
    assert spread([1.0, -1.0, 0.5], 0, chance()) == (0.0, 0.0)
    assert spread([0.0], 50, chance()) == (math.inf, math.inf)
    one = money_of([cell()], [item(500, 100, 20)], chance())
    assert one.low is None and one.high is None
    assert sums_of([cell()], [item(500, 100, 20)], chance())[0].sentence() == "0.05 USD".replace("0.05", "0.0400")


def test_the_interval_is_never_narrower_than_students_and_reaches_further_up_for_long_answers() -> None:
    outputs = [3.0, 4, 5, 6, 7, 8, 9, 11, 20, 60]
    errors = [output - fmean(outputs) for output in outputs]
    below, above = spread(errors, 1e9, chance())
    assert below >= 2.262 * stdev(errors) / math.sqrt(10) * 0.9999
    assert above > 1.3 * below


def test_no_end_is_above_what_calls_may_take() -> None:
    sample = [item(1000, 250, 1), item(1000, 250, 990)]
    money = money_of([cell()], sample, chance())
    assert money.high == pytest.approx((100_000 + 1024 * 100 + 10 * 1000 * 100) * PICO / 10**6)
    assert money.low is not None and money.low >= 0


def test_a_guess_is_a_range_and_counts_later_judges_by_half() -> None:
    first, later = tokens_of(cell(), []), tokens_of(cell(always=False), [])
    assert later.input == first.input / 2 and later.least == (0.0, 0.0) and later.most == first.most
    money = money_of([cell()], [], chance())
    assert money.low is not None and money.high is not None and 0 < money.low < money.expected < money.high
    assert expected_calls([cell(), cell(always=False)], []) == 150


def test_a_later_judge_counts_by_its_share_in_the_pilot() -> None:
    sample = [item(100, 25, 5), item(100, 0, 0), item(100, 0, 0), item(100, 0, 0)]
    assert expected_calls([cell(always=False)], sample) == 25
    assert tokens_of(cell(always=False), sample).output == pytest.approx(125)


def test_unpriced_cells_are_in_no_sum_and_other_services_are_beside() -> None:
    unpriced = cell(judge="b", place=Place("pool", "other"))
    sample = [item(500, 100, 20), item(1500, 300, 40)]
    (total,) = sums_of([cell(), unpriced], sample, chance())
    assert (total.expected, total.batch, total.cached, total.flex) == (
        Decimal("0.05"), Decimal("0.025"), Decimal("0.04"), None,
    )  # fmt: skip
    lines = {(line.kind, line.name): line for line in lines_of([cell(), unpriced], sample, chance())}
    assert lines["judge", "b"].cost is None and lines["dimension", "d"].cost is None
    assert lines["judge", "a"].cost is not None and lines["judge", "a"].cost.expected == Decimal("0.05")
    dear = cell(place=Place("p", "m", price_from_table({"input": 1, "output": 2}, "test")))
    assert sums_of([cell(), dear], sample, chance())[0].batch is None, "one of them has no such price"


def test_a_better_service_is_quoted_at_its_price_and_by_other_roads_without_it() -> None:
    prices = {"input": 1, "output": 10, "batch": 0.5, "priority": 2}
    asks = cell(place=Place("p", "m", price_from_table(prices, "test"), "priority"))
    (total,) = sums_of([asks], [item(500, 100, 20), item(1500, 300, 40)], chance())
    assert (total.expected, total.online, total.batch) == (Decimal("0.1"), Decimal("0.1"), Decimal("0.025"))


def test_a_probes_variants_count_by_their_own_bytes() -> None:
    probe = cell(units=10, calls=10.0, bytes=50_000.0, probe="authority")
    sample = [item(500, 100, 20), item(1500, 300, 40)]
    assert tokens_of(probe, sample).input == pytest.approx(10_000)
    (line,) = [line for line in lines_of([cell(), probe], sample, chance()) if line.kind == "probe"]
    assert (line.name, line.calls, line.input_tokens, line.output_tokens) == ("authority", 10, 10_000, 300)


def quote(**more: Any) -> Quote:
    total = QuotedSum(currency="USD", expected=Decimal(4), low=Decimal(3), high=Decimal(6))
    fields: dict[str, Any] = {
        "units": 400, "from_cache": 0, "calls_least": 400, "calls": 400, "calls_most": 400, "ranges": [], "bytes": 1,
        "input_tokens": 900, "output_tokens": 100, "source": "texts", "confidence": None, "sums": [total],
    }  # fmt: skip
    return Quote(**{**fields, **more})


def test_a_question_may_end_it_early_and_calls_are_a_range_then() -> None:
    ranged = with_range(quote(), 100, 200, "why")
    assert (ranged.calls_least, ranged.calls, ranged.calls_most) == (100, 200, 200)
    assert ranged.calls_sentence() == "100 to 200 calls, about 200 (why)"
    (total,) = ranged.sums
    assert (total.low, total.expected, total.high) == (Decimal("0.75"), Decimal(2), Decimal(3))


def test_a_cap_is_never_quoted_to_be_passed() -> None:
    capped = with_cap(quote(), Decimal(5), None, None)
    assert (capped.sums[0].expected, capped.sums[0].high, capped.notes) == (4, 5, [])
    capped = with_cap(quote(), Decimal(2), 500, None)
    assert (capped.sums[0].low, capped.sums[0].expected, capped.sums[0].high) == (2, 2, 2)
    assert [note.partition(" of ")[0] for note in capped.notes] == ["max_tokens", "max_cost"]
    assert with_cap(quote(), None, None, 40).calls_most == 40
    assert with_cap(quote(), None, None, 4000) == quote()


def test_what_binds_a_pool() -> None:
    load = PoolLoad("p", 600, 60_000, 10, 2.0)
    assert (load.time() or quote()).model_dump() == {"minutes": 2.0, "pool": "p", "binds": "limit"}
    rated = PoolLoad("p", 600, 60_000, 10, 2.0, calls_per_min=100)
    by_tokens = PoolLoad("q", 600, 60_000, 10, 2.0, tokens_per_min=2000)
    times = [time_of(loads) for loads in ([load, rated], [load, by_tokens], [PoolLoad("r", 2, 9, 10, 30.0)])]
    assert [(time.minutes, time.pool, time.binds) for time in times if time] == [
        (6.0, "p", "rate"), (30.0, "q", "rate"), (0.5, "r", "latency"),
    ]  # fmt: skip
    together = time_of([load, PoolLoad("t", 600, 0, 10, 1.0)], 10)
    assert together is not None and (together.minutes, together.pool, together.binds) == (3.0, "p, t", "limit")
    assert time_of([load, PoolLoad("s", 1, 1, 1, None)]) is None, "one pool's time is unknown"


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_hold_after_a_pilot_of_thirty_calls(kind: str) -> None:
    outcomes = run(kind, 120, seed=7)
    assert max(outcome.calls for outcome in outcomes) <= PILOT_CALLS
    held = sum(outcome.holds for outcome in outcomes) / len(outcomes)
    assert held >= 0.88, f"{held:.3f} of intervals that are to hold in nine of ten at least"
    assert sorted(outcome.width for outcome in outcomes)[60] < 0.9, "an interval that tells something"
