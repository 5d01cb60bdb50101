"""Tells what tokens cost. Money is a whole number of picos, 10^-12 of a currency's unit; no float ever holds any.

Prices are told for a million tokens. One with up to six decimals is a whole number of picos for a single token, so that
the cost of a call is exact. Amounts of up to 9,007 units of a currency are exact in the store's scripts, too, whose
numbers are doubles (2^53 picos).

A model whose price nobody has told is unpriced, which is something else than free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator

from dicast.app.domain.opinion import CallUsage, Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

PICO = 10**12
MILLION = 10**6
PARTS = ("input", "output", "cached_input", "cache_write")
VARIANTS = ("batch", "flex")
SHARES = (*VARIANTS, "priority")
MOST = 9_007 * PICO
"""More is not exact in the store's scripts."""
HIDDEN_TOKENS = 1024
"""Tokens that a provider may add to a request: its instructions for tools and schemas, and the marks of a chat."""
IMAGE_TOKENS = 50_000
"""More than any documented model counts for one image (GPT-4o mini: 48,169 for 768 by 2,000 pixels)."""


class TokenRates(NamedTuple):
    """What one token costs, in picos."""

    input: int
    output: int
    cached_input: int
    cache_write: int

    def cost(self, usage: Usage) -> int:
        """Return the cost of a call's tokens. Cached and written ones are parts of the input."""
        if not isinstance(usage, CallUsage):
            return usage.input_tokens * self.input + usage.output_tokens * self.output
        cached, written = usage.cached_input_tokens, usage.cache_write_tokens
        plain = max(0, usage.input_tokens - cached - written)
        return (
            plain * self.input + cached * self.cached_input + written * self.cache_write
            + usage.output_tokens * self.output
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost. `tiers` are the rates of calls with more input tokens than their first number,
    ascending. `batch`, `flex` and `priority` are the shares of the price that these kinds of service cost, such as 0.5
    or 2, None where unknown.
    `source` says who told the price, `date` as of when."""

    rates: TokenRates
    currency: str = "USD"
    date: str = ""
    source: str = ""
    tiers: tuple[tuple[int, TokenRates], ...] = ()
    batch: Decimal | None = None
    flex: Decimal | None = None
    priority: Decimal | None = None

    def cost(self, usage: Usage) -> int:
        """Return what a call costs that took these tokens, in picos."""
        rates = self.rates
        for above, higher in self.tiers:
            if usage.input_tokens > above:
                rates = higher
        return rates.cost(usage)

    def by_road(self, road: str, tier: str = "") -> Price:
        """Return the price of calls by a road, answered by the kind of service `tier`; "": by the one that the road
        asks for. A kind whose share is not known costs the whole price."""
        if road == "batch":
            return self.of_service(self.batch)
        if tier == "priority":
            return self.of_service(self.priority)
        return self.of_service(self.flex) if (tier or road) == "flex" else self

    def of_service(self, share: Decimal | None) -> Price:
        """Return the price of a kind of service that costs this share of it, rounded up to whole picos; where the share
        is not known, the whole price, so that nothing is taken for cheaper than it is."""
        if share is None:
            return self

        def scaled(rates: TokenRates) -> TokenRates:
            return TokenRates(*(math.ceil(of_one * share) for of_one in rates))

        return replace(self, rates=scaled(self.rates), tiers=tuple((above, scaled(r)) for above, r in self.tiers))

    @property
    def highest(self) -> tuple[int, int]:
        """The most that one token of input, whatever its kind, and one of output may cost, in picos."""
        rates = [self.rates, *(higher for _, higher in self.tiers)]
        return max(max(r.input, r.cached_input, r.cache_write) for r in rates), max(r.output for r in rates)

    def as_dict(self) -> dict[str, Any]:
        """Return the price as a job's record stores it."""
        return {
            "rates": list(self.rates), "currency": self.currency, "date": self.date, "source": self.source,
            "tiers": [[above, list(rates)] for above, rates in self.tiers],
            **{name: str(share) for name in SHARES if (share := getattr(self, name)) is not None},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        shares = {name: Decimal(fields[name]) for name in SHARES if name in fields}
        tiers = tuple((above, TokenRates(*rates)) for above, rates in fields["tiers"])
        return cls(
            TokenRates(*fields["rates"]), fields["currency"], fields["date"], fields["source"], tiers,
            **shares,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A place where a judge may be asked, with its price as it was when the job was submitted; None: unpriced. `tier`
    is the kind of service that its calls ask for, "" if they ask for none."""

    pool: str
    model: str
    price: Price | None = None
    tier: str = ""

    def price_by(self, road: str, answered: str = "") -> Price | None:
        """Return the price of a call by a road; `answered` is the kind of service that answered it, if it is known."""
        requested = "" if road == "flex" else self.tier
        return None if self.price is None else self.price.by_road(road, answered or requested)

    def highest_by(self, road: str) -> tuple[int, int]:
        """Return the most that one token of input and one of output may cost by a road, in picos; 0 if unpriced. A call
        that asks for flex may be answered by the usual service, and one that asks for `auto` by priority, each at its
        price."""
        if self.price is None:
            return 0, 0
        prices = [self.price.by_road(road, "" if road == "flex" else self.tier)]
        if road == "flex":
            prices.append(self.price)
        elif self.tier == "auto":
            prices.append(self.price.by_road(road, "priority"))
        return max(price.highest[0] for price in prices), max(price.highest[1] for price in prices)

    def as_dict(self) -> dict[str, Any]:
        tier = {"tier": self.tier} if self.tier else {}
        return {"pool": self.pool, "model": self.model, "price": self.price and self.price.as_dict(), **tier}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        price = fields["price"]
        return cls(
            fields["pool"], fields["model"], None if price is None else Price.from_dict(price), fields.get("tier", "")
        )


def checked_amount(value: Any) -> str:
    """Return an amount of money as a text. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError("must be an amount of money")
    try:
        amount = _decimal("", value)
    except ValueError:
        raise ValueError("must be an amount of money") from None
    if not 0 < picos(amount) <= MOST:
        raise ValueError(f"must be more than 0 and at most {amount_of(MOST):,.0f}")
    return str(amount)


Amount = Annotated[str, BeforeValidator(checked_amount)]


def picos(amount: Decimal) -> int:
    """Return an amount of a currency in picos. Raises ValueError for one that is no whole number of them."""
    scaled = amount * PICO
    if scaled != scaled.to_integral_value():
        raise ValueError(f"{amount} has more than 12 decimals")
    return int(scaled)


def cap_fields(max_cost: str | None, max_tokens: int | None, max_calls: int | None) -> dict[str, str]:
    """Return caps as a job's record has them, those that are there."""
    cost = picos(Decimal(max_cost)) if max_cost is not None else None
    caps = {"max_cost": cost, "max_tokens": max_tokens, "max_calls": max_calls}
    return {name: str(cap) for name, cap in caps.items() if cap is not None}


def amount_of(pico: int) -> Decimal:
    """Return picos as an amount of their currency, without needless zeros."""
    exact = (Decimal(pico) / PICO).normalize()
    return exact if exact.as_tuple().exponent <= 0 else exact.quantize(Decimal(1))  # type: ignore[operator]


def shown(amount: Decimal, currency: str) -> str:
    """Format an amount for people: cents, or three digits of less than a tenth of the unit."""
    if abs(amount) >= Decimal("0.1") or not amount:
        return f"{amount:,.2f} {currency}"
    digits = 2 - amount.adjusted()
    return f"{amount:.{digits}f} {currency}"


def price_from_table(table: Mapping[str, Any], source: str) -> Price:
    """Return the price that an operator has told for a million tokens. What is not told of cached tokens costs as
    other input does, so that nothing is taken for cheaper than it is. Raises ValueError."""
    rates = {name: _per_token(name, table[name]) for name in PARTS if name in table}
    if missing := [name for name in ("input", "output") if name not in rates]:
        raise ValueError(f"{missing[0]} is missing")
    of_input = {name: rates.get(name, rates["input"]) for name in ("cached_input", "cache_write")}
    shares = {name: _share(name, table[name]) for name in SHARES if name in table}
    return Price(
        TokenRates(rates["input"], rates["output"], **of_input), str(table.get("currency", "USD")),
        str(table.get("date", "")), source, (), **shares,
    )  # fmt: skip


def _decimal(name: str, value: Any) -> Decimal:
    try:
        number = Decimal(repr(value) if isinstance(value, float) else str(value))
    except InvalidOperation:
        raise ValueError(f"{name} is no number") from None
    if not number.is_finite() or number < 0:
        raise ValueError(f"{name} must be 0 or more")
    return number


def _per_token(name: str, value: Any) -> int:
    """Return the picos of one token, from the price of a million."""
    pico = _decimal(name, value) * PICO / MILLION
    if pico != pico.to_integral_value():
        raise ValueError(f"{name} has more than 6 decimals")
    return int(pico)


def _share(name: str, value: Any) -> Decimal:
    share = _decimal(name, value)
    if not 0 < share <= 10:
        raise ValueError(f"{name} is a share of the price, such as 0.5")
    return share


class Bound(NamedTuple):
    """The most tokens that a call may take. A tokenizer that works on bytes makes no token of less than one."""

    input_tokens: int
    output_tokens: int

    def cost(self, highest: tuple[int, int]) -> int:
        """Return what it costs at most, at the most that a token of input and of output costs."""
        of_input, of_output = highest
        return self.input_tokens * of_input + self.output_tokens * of_output


def bound_of_request(texts: Iterable[str], images: int, max_tokens: int) -> Bound:
    """Return the most tokens that a request of these texts, its schema among them, and so many images may take."""
    size = sum(len(text) if text.isascii() else len(text.encode(errors="replace")) for text in texts)
    return Bound(size + HIDDEN_TOKENS + images * IMAGE_TOKENS, max_tokens)


# ---------------------------------------------------------------------- the price list of genai-prices
def listed_price(model: str, provider: str | None, base_url: str | None) -> Price | None:
    """Return a model's price by the package genai-prices, as it was installed; nothing is fetched. None if the package
    is not there, or does not know the model at this provider or address."""
    try:
        from genai_prices import data_snapshot  # noqa: PLC0415  optional, and takes long to load
    except ImportError:
        return None
    snapshot = data_snapshot.get_snapshot()
    try:
        by = (None, provider, None) if base_url is None else (None, None, base_url)
        _, info = snapshot.find_provider_model(model, *by)
    except LookupError:
        return None
    now = datetime.now(UTC)
    return _price_of_list(info, info.get_prices(now), now)


def _price_of_list(info: ModelInfo, standard: ModelPrice, now: datetime) -> Price | None:
    of_input = getattr(standard, "input_mtok", None)
    of_output = getattr(standard, "output_mtok", None)
    if of_input is None or of_output is None:
        return None
    parts = [of_input, of_output, _field(standard, "cache_read_mtok", of_input),
             _field(standard, "cache_write_mtok", of_input)]  # fmt: skip
    starts = sorted({tier.start for part in parts for tier in getattr(part, "tiers", ())})
    try:
        rates = TokenRates(*(_per_token("price", _at(part, 0)) for part in parts))
        tiers = tuple((at, TokenRates(*(_per_token("price", _at(part, at + 1)) for part in parts))) for at in starts)
    except ValueError:
        return None
    shares = {name: _listed_share(info, standard, name, now) for name in SHARES}
    try:
        release = version("genai-prices")
    except PackageNotFoundError:
        release = ""
    return Price(rates, "USD", "", f"genai-prices {release}", tiers, **shares)


def _field(price: ModelPrice, name: str, default: Any) -> Any:
    value = getattr(price, name, None)
    return default if value is None else value


def _at(part: Any, input_tokens: int) -> Decimal:
    """Return the price of a million tokens of a call with so many tokens of input."""
    base: Decimal = getattr(part, "base", part)
    for tier in getattr(part, "tiers", ()):
        if input_tokens > tier.start:
            base = tier.price
    return base


def _listed_share(info: ModelInfo, standard: ModelPrice, variant: str, now: datetime) -> Decimal | None:
    """Return what share of the standard price a variant costs. None where the list does not have it: asked for a
    variant that it does not know, genai-prices gives the standard price without a word."""
    for entry in info.price_variants or ():
        if variant in entry.when.values() and (entry.constraint is None or entry.constraint.active(now)):
            prices = entry.prices
            pairs = [(_field(prices, name, None), getattr(standard, name)) for name in ("input_mtok", "output_mtok")]
            if any(numbers is None or not _at(whole, 0) for numbers, whole in pairs):
                return None
            shares = {_at(numbers, 0) / _at(whole, 0) for numbers, whole in pairs}
            return shares.pop() if len(shares) == 1 else None
    return None
