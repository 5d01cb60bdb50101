"""Tells what a job will take before it is run: calls, tokens, money and minutes, with intervals.

Calls, and the bytes of their requests, are counted. Tokens are estimated, from a sample of the job's own items (a
pilot) or of an earlier job, in `Cell`s of one judge, dimension and probe:

    input of the rest   =  bytes of the rest  *  sum of the sample's input tokens / sum of its bytes
    output of the rest  =  units of the rest  *  sum of the sample's output tokens / sum of its units

The first is the ratio estimator, whose auxiliary variable, the bytes, is known of all items; the second is the mean of
a random sample (Cochran, Sampling Techniques, 3rd ed. 1977, chapters 6 and 2). Items are what was drawn, so that an
item's units vary together. Of a sum of money r_i is what the i-th of n sampled items adds to its error, linearised, in
which input and output are weighted by their prices and extended to the rest. The error of a prediction for a rest of m
items is s_r * sqrt(1/n + 1/m), which is Cochran's with its finite population correction (Valliant, Dorfman and Royall,
Finite Population Sampling and Inference, 2000, chapter 2). It is multiplied by the quantiles of Student's t with n - 1
degrees of freedom, and by those of the studentized bootstrap, which follow the skewness of long answers (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, chapter 12); the interval is the smallest that holds both.

Money is estimated in floats, and told in millionths of a currency's unit; no book is kept by it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import fmean, stdev
from typing import Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.plan import Road
from dicast.app.domain.price import HIDDEN_TOKENS, MILLION, VARIANTS, Place, Price, TokenRates, amount_of, shown

CONFIDENCE = 0.95
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom, which is taken for all beyond."""
RESAMPLES = 999
RESAMPLED_FROM = 4
"""The fewest items that are resampled: of fewer, too many resamples hold one item alone."""
GUESSED_BYTES = (3.0, 4.0, 6.0)
"""Bytes of a token, where no call has told: the fewest, usually, and the most."""
GUESSED_OUTPUT = (40, 150)
"""Tokens of an opinion, where no call has told: the fewest, and usually; the most is what the judge may write."""
GUESSED_SHARE = (0.0, 0.5, 1.0)
"""The share of the items about which a later judge is asked, where no call has told."""

Source = Literal["pilot", "earlier", "texts", "cache"]
CellName = tuple[str, str]


class Resampling(Protocol):
    """A source of randomness that can draw; `random.Random` implements it."""

    def choices(self, population: Sequence[float], *, k: int) -> list[float]:
        """Draw `k` of the population, with replacement."""


class TakenTokens(NamedTuple):
    """Tells what the units of one item in one cell took: how many they are, the bytes of their requests, and tokens. A
    unit that no judge was asked about counts, with no tokens."""

    units: int
    bytes: float
    input_tokens: float
    output_tokens: float


Sample = Sequence[Mapping[CellName, TakenTokens]]
"""Of each sampled item what it took, by judge and dimension."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The units of one judge in one dimension that are still to be judged: of the items as they are, or of variants for
    a `probe`. `bytes` are those of their requests, `calls` their share of the calls, and `max_output` the tokens that
    an opinion may take. `place` is where the judge is asked, the dearest of several; unless it is `always` asked, the
    judges before may settle the outcome."""

    judge: str
    dimension: str
    place: Place
    units: int
    calls: float
    bytes: float
    max_output: float
    probe: str = ""
    always: bool = True
    road: Road = "online"

    @property
    def price(self) -> Price | None:
        """It holds what its tokens cost by its road; None: unpriced."""
        return self.place.price_by(self.road)

    @property
    def name(self) -> CellName:
        return self.judge, self.dimension


class _Frozen(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class QuotedSum(_Frozen):
    """Money in one currency: as expected by the job's own roads, and its interval. Of each kind of service, what is
    expected where all priced models have such a price: `online`, `batch`, `flex`, and online with all input read from
    the provider's cache (`cached`), which is the least that caching can bring."""

    currency: str
    expected: Decimal
    low: Decimal | None = Field(description="null where a sample of one item tells nothing of others")
    high: Decimal | None
    online: Decimal | None = None
    batch: Decimal | None = None
    flex: Decimal | None = None
    cached: Decimal | None = None

    def sentence(self) -> str:
        """Return it as in '1.20 USD (0.90 to 1.60)'."""
        if self.low is None or self.high is None:
            return shown(self.expected, self.currency)
        ends = (shown(end, "").strip() for end in (self.low, self.high))
        return f"{shown(self.expected, self.currency)} ({' to '.join(ends)})"


class QuoteLine(_Frozen):
    """What one judge, dimension or probe takes. `cost` is null where the model is unpriced."""

    kind: Literal["judge", "dimension", "probe"]
    name: str
    calls: float = Field(description="at most; a batched call is divided among its dimensions")
    input_tokens: int
    output_tokens: int
    cost: QuotedSum | None


class QuotedTime(_Frozen):
    """How long the calls take at the present rate of the slowest pool, and what binds there: the `limit` on open calls,
    the `rate` that its provider grants, or the `latency` of a single call."""

    minutes: float
    pool: str
    binds: Literal["limit", "rate", "latency"]

    def sentence(self) -> str:
        names = {"limit": "its limit on open calls", "rate": "its rate", "latency": "the latency of a call"}
        length = f"{self.minutes:.0f} min" if self.minutes >= 10 else f"{self.minutes:.1f} min"
        return f"{length} at the present rate of pool {self.pool}, where {names[self.binds]} binds"


class Quote(_Frozen):
    """What a job takes if no call is repeated. Units of which the cache has an opinion (`from_cache`) take nothing, and
    are in no other number; neither are models without a price (`unpriced`) in any sum. `source` says by what tokens
    were estimated: a `pilot` of this job, an `earlier` job of the same judges and rubrics (`job`), or the `texts`
    alone, which is a guess; `sampled` is how many items that job told of."""

    units: int = Field(description="of which no opinion is kept")
    from_cache: int = Field(description="units whose opinions the cache has")
    calls_least: int
    calls: int = Field(description="as expected")
    calls_most: int
    ranges: list[str] = Field(description="why the number of calls is a range; empty where it is exact")
    bytes: int = Field(description="of all requests")
    input_tokens: int
    output_tokens: int
    source: Source
    job: str = ""
    sampled: int = 0
    confidence: float | None = Field(description="of the intervals; null where they are guesses")
    sums: list[QuotedSum] = Field(description="by currency")
    lines: list[QuoteLine] = []
    unpriced: list[str] = []
    time: QuotedTime | None = Field(default=None, description="null where no call has told how long one takes")
    notes: list[str] = []

    def calls_sentence(self) -> str:
        """Return the number of calls, and why it is a range."""
        if self.calls_least == self.calls_most:
            text = f"{self.calls_most:,} calls"
        else:
            text = f"{self.calls_least:,} to {self.calls_most:,} calls, about {self.calls:,} ({'; '.join(self.ranges)})"
        return f"{text}; {self.from_cache:,} opinions from the cache" if self.from_cache else text

    def money_sentence(self) -> str:
        """Return the money in words, with whatever is in no sum."""
        parts = [total.sentence() for total in self.sums]
        if self.unpriced:
            parts.append(f"{'besides, ' if parts else ''}the unpriced calls of {', '.join(self.unpriced)}")
        return "; ".join(parts)

    def beside_bill(self) -> str:
        """Return the quote in a line to be read beside the bill; "" if it tells no money."""
        money = " and ".join(total.sentence() for total in self.sums)
        return f"quoted {money}, {self.source_sentence()}" if money else ""

    def source_sentence(self) -> str:
        """Return by what tokens were estimated."""
        items = f"{self.sampled:,} {'item' if self.sampled == 1 else 'items'}"
        return {
            "pilot": f"tokens by a pilot of {items} (job {self.job})",
            "earlier": f"tokens by {items} of the earlier job {self.job}, as if this job's were like them",
            "texts": "tokens guessed from the texts alone",
            "cache": "all opinions come from the cache",
        }[self.source]


class Interval(NamedTuple):
    """An estimate with its interval; the ends are None if nothing is known of them."""

    expected: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class CellTokens:
    """The tokens that a cell is expected to take, and by guesses at least and at most."""

    input: float
    output: float
    least: tuple[float, float]
    most: tuple[float, float]


def tokens_of(cell: Cell, sample: Sample) -> CellTokens:
    """Return what a cell is expected to take: as the sample did, or as is usual where that has none of its units."""
    most = cell.bytes + HIDDEN_TOKENS * cell.calls, cell.max_output * cell.units
    taken = [item[cell.name] for item in sample if cell.name in item]
    units, size = sum(entry.units for entry in taken), sum(entry.bytes for entry in taken)
    if units and size:
        per_byte = sum(entry.input_tokens for entry in taken) / size
        per_unit = sum(entry.output_tokens for entry in taken) / units
        return CellTokens(per_byte * cell.bytes, min(per_unit, cell.max_output) * cell.units, (0.0, 0.0), most)
    low, share, high = (1.0, 1.0, 1.0) if cell.always else GUESSED_SHARE
    fewest, usual, many = GUESSED_BYTES
    short, length = (min(tokens, cell.max_output) for tokens in GUESSED_OUTPUT)
    return CellTokens(
        share * cell.bytes / usual, share * cell.units * length,
        (low * cell.bytes / many, low * cell.units * short), (high * cell.bytes / fewest, high * most[1]),
    )  # fmt: skip


def rates_of(price: Price, tokens_of_call: float) -> TokenRates:
    """Return the rates of calls with so many tokens of input."""
    rates = price.rates
    for above, higher in price.tiers:
        if tokens_of_call > above:
            rates = higher
    return rates


def money_of(cells: Sequence[Cell], sample: Sample, chance: Resampling) -> Interval:
    """Return the money that priced cells take, in picos."""
    expected = least = most = rest = 0.0
    errors = [0.0] * len(sample)
    for cell in cells:
        price = cell.price
        assert price is not None, "unpriced cells are in no sum"
        tokens = tokens_of(cell, sample)
        rates = rates_of(price, tokens.input / cell.calls if cell.calls else 0.0)
        expected += rates.input * tokens.input + rates.output * tokens.output
        least += rates.input * tokens.least[0] + rates.output * tokens.least[1]
        most += rates.input * tokens.most[0] + rates.output * tokens.most[1]
        taken = [item.get(cell.name) for item in sample]
        units, size = (sum(getattr(entry, name) for entry in taken if entry) for name in ("units", "bytes"))
        if units and size:
            rest = max(rest, cell.units * len(sample) / units)
            per_byte, per_unit = tokens.input / max(1.0, cell.bytes), tokens.output / max(1, cell.units)
            for at, entry in enumerate(taken):
                if entry is not None:
                    off_input = (entry.input_tokens - per_byte * entry.bytes) * cell.bytes / size
                    off_output = (entry.output_tokens - per_unit * entry.units) * cell.units / units
                    errors[at] += len(sample) * (rates.input * off_input + rates.output * off_output)
    if not sample:
        return Interval(expected, least, most)
    below, above = spread(errors, rest, chance)
    return Interval(expected, _bounded(expected - below, 0.0, expected), _bounded(expected + above, expected, most))


def _bounded(value: float, low: float, high: float) -> float | None:
    return None if math.isnan(value) or math.isinf(value) else min(max(value, low), max(low, high))


def spread(errors: Sequence[float], rest: float, chance: Resampling) -> tuple[float, float]:
    """Return how far the truth may lie below and above a prediction for the rest of `rest` items, from what each
    sampled item adds to its error (see the module); infinite for fewer than two items."""
    count = len(errors)
    if not rest or (count > 1 and not any(errors)):
        return 0.0, 0.0
    if count < 2:
        return math.inf, math.inf
    error = stdev(errors) * math.sqrt(1 / count + 1 / rest)
    quantile = _STUDENT[min(count - 1, len(_STUDENT)) - 1]
    if count < RESAMPLED_FROM:
        return quantile * error, quantile * error
    least, most = _studentized(errors, chance)
    return max(quantile, most) * error, max(quantile, -least) * error


def _studentized(errors: Sequence[float], chance: Resampling) -> tuple[float, float]:
    """Return the quantiles of the studentized mean of resamples."""
    count, middle = len(errors), fmean(errors)
    smallest = 1e-9 * stdev(errors)
    drawn = []
    for _ in range(RESAMPLES):
        resample = chance.choices(errors, k=count)
        mean = fmean(resample)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in resample) / (count - 1))
        drawn.append((mean - middle) * math.sqrt(count) / deviation if deviation > smallest else 0.0)
    drawn.sort()
    tail = round((1 - CONFIDENCE) / 2 * (RESAMPLES + 1))
    return drawn[tail - 1], drawn[-tail]


# ---------------------------------------------------------------------- sums and lines
def sums_of(cells: Sequence[Cell], sample: Sample, chance: Resampling) -> list[QuotedSum]:
    """Return the money of all priced cells, by currency."""
    by_currency: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.place.price is not None:
            by_currency[cell.place.price.currency].append(cell)
    return [_sum(currency, group, sample, chance) for currency, group in sorted(by_currency.items())]


def _sum(currency: str, cells: Sequence[Cell], sample: Sample, chance: Resampling) -> QuotedSum:
    money = money_of(cells, sample, chance)
    others = {name: _of_service(name, cells, sample) for name in ("online", *VARIANTS, "cached")}
    low, high = (None if end is None else _amount(end) for end in (money.low, money.high))
    return QuotedSum(currency=currency, expected=_amount(money.expected), low=low, high=high, **others)


def _of_service(name: str, cells: Sequence[Cell], sample: Sample) -> Decimal | None:
    """Return what cells are expected to cost by another kind of service; None where one of them has no such price. A
    judge that asks for a `service_tier` does so online."""
    total = 0.0
    for cell in cells:
        tokens = tokens_of(cell, sample)
        price = cell.place.price if name in VARIANTS else cell.place.price_by("online")
        assert price is not None
        rates = rates_of(price, tokens.input / cell.calls if cell.calls else 0.0)
        if name == "online":
            total += rates.input * tokens.input + rates.output * tokens.output
        elif name == "cached":
            if rates.cached_input == rates.input:
                return None
            total += rates.cached_input * tokens.input + rates.output * tokens.output
        elif (share := getattr(price, name)) is None:
            return None
        else:
            total += float(share) * (rates.input * tokens.input + rates.output * tokens.output)
    return _amount(total)


def _amount(pico: float) -> Decimal:
    """Return an estimate in picos as an amount, in whole millionths."""
    return amount_of(round(pico / MILLION) * MILLION)


def lines_of(cells: Sequence[Cell], sample: Sample, chance: Resampling) -> list[QuoteLine]:
    """Return what each judge takes, each dimension, and each probe."""
    lines = []
    for kind in ("judge", "dimension", "probe"):
        groups: dict[str, list[Cell]] = defaultdict(list)
        for cell in cells:
            groups[getattr(cell, kind)].append(cell)
        groups.pop("", None)
        for name, group in groups.items():
            tokens = [tokens_of(cell, sample) for cell in group]
            priced = all(cell.place.price is not None for cell in group)
            sums = sums_of(group, sample, chance) if priced else []
            lines.append(
                QuoteLine.model_validate({
                    "kind": kind, "name": name, "calls": round(sum(cell.calls for cell in group), 2),
                    "input_tokens": round(sum(entry.input for entry in tokens)),
                    "output_tokens": round(sum(entry.output for entry in tokens)),
                    "cost": sums[0] if len(sums) == 1 else None,
                })
            )  # fmt: skip
    return lines


# ---------------------------------------------------------------------- ranges, caps and time
def expected_calls(cells: Iterable[Cell], sample: Sample) -> float:
    """Return the number of calls that are expected: of a judge that is not always asked, its share in the sample."""
    total = 0.0
    for cell in cells:
        taken = [item[cell.name] for item in sample if cell.name in item]
        asked_units = sum(entry.units for entry in taken if entry.input_tokens)
        share = asked_units / units if (units := sum(entry.units for entry in taken)) else GUESSED_SHARE[1]
        total += cell.calls if cell.always else share * cell.calls
    return total


def with_range(quote: Quote, least: int, most: int, why: str) -> Quote:
    """Return the quote of a job that may end with fewer calls, and makes at most so many: its money then may be less in
    proportion."""
    most = min(most, quote.calls_most)
    least = min(least, most)
    down, up = least / max(1, quote.calls_least), most / max(1, quote.calls_most)
    sums = [
        total.model_copy(
            update={
                "low": None if total.low is None else _scaled(total.low, min(1.0, down)),
                **{name: _scaled(value, up) for name in ("expected", "high") if (value := getattr(total, name))},
            }
        )
        for total in quote.sums
    ]
    ranges = [*quote.ranges, why]
    calls = min(quote.calls, most)
    return quote.model_copy(
        update={"calls_least": least, "calls": calls, "calls_most": most, "ranges": ranges, "sums": sums}
    )


def _scaled(amount: Decimal, factor: float) -> Decimal:
    return (amount * Decimal(repr(factor))).quantize(Decimal("0.000001")).normalize() + 0


def with_cap(quote: Quote, max_cost: Decimal | None, max_tokens: int | None, max_calls: int | None) -> Quote:
    """Return the quote of a job with caps, of which nothing is expected to be passed."""
    if max_calls is not None and max_calls < quote.calls_most:
        why = f"max_calls ends it at {max_calls:,}"
        quote = with_range(quote, min(max_calls, quote.calls_least), max_calls, why)
    notes = list(quote.notes)
    if max_tokens is not None and quote.input_tokens + quote.output_tokens > max_tokens:
        notes.append(f"max_tokens of {max_tokens:,} is expected to end it before all is judged")
    if max_cost is not None and len(quote.sums) == 1:
        (total,) = quote.sums
        if total.expected > max_cost:
            notes.append(f"max_cost of {shown(max_cost, total.currency)} is expected to end it before all is judged")
        names = [name for name in ("expected", "low", "high") if (getattr(total, name) or 0) > max_cost]
        quote = quote.model_copy(update={"sums": [total.model_copy(update=dict.fromkeys(names, max_cost))]})
    return quote.model_copy(update={"notes": notes})


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """What a job asks of a pool, and what the pool gives now: calls at once, seconds of a call, and calls and tokens a
    minute as its provider grants them; None where nobody has told."""

    pool: str
    calls: float
    tokens: float
    limit: int
    latency_s: float | None
    calls_per_min: float | None = None
    tokens_per_min: float | None = None

    def time(self) -> QuotedTime | None:
        """Return how long the calls take there; None if no call has told how long one takes."""
        if self.latency_s is None:
            return None
        minutes = {"limit": self.calls * self.latency_s / 60 / max(1, self.limit), "latency": self.latency_s / 60}
        rates = [self.calls / self.calls_per_min] if self.calls_per_min else []
        rates += [self.tokens / self.tokens_per_min] if self.tokens_per_min else []
        minutes["rate"] = max(rates, default=0.0)
        binds = max(minutes, key=lambda name: minutes[name])
        return QuotedTime.model_validate({"minutes": round(minutes[binds], 2), "pool": self.pool, "binds": binds})


def time_of(loads: Iterable[PoolLoad], most_open: int | None = None) -> QuotedTime | None:
    """Return the time of the pool that takes longest, or of all together if `most_open` calls, which they share, bind;
    None if the time of any pool is unknown."""
    loads = [load for load in loads if load.calls]
    times = [time for load in loads if (time := load.time()) is not None]
    if not times or len(times) < len(loads):
        return None
    slowest = max(times, key=lambda time: time.minutes)
    together = sum(load.calls * (load.latency_s or 0.0) for load in loads) / 60 / max(1, most_open or 0)
    if most_open is None or len(loads) == 1 or together <= slowest.minutes:
        return slowest
    return QuotedTime(minutes=round(together, 2), pool=", ".join(load.pool for load in loads), binds="limit")


def without_hits(cell: Cell, units: int, calls: float, size: float) -> Cell:
    """Return a cell without units of which the cache has an opinion."""
    return replace(
        cell, units=cell.units - units, calls=max(0.0, cell.calls - calls), bytes=max(0.0, cell.bytes - size)
    )
