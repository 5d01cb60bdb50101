"""What a job has cost: its books, by judge, place and day.

The ledger counts each call once, at the end of its claim, under `b:<agent>.<deployment>.<day>:<part>` of the job's
record, where the day is counted from 1970 in UTC. A call that brought no answer and may be charged has cost an unknown
amount, and at most what it would have cost with the most tokens that it may have taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Protocol, Self
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.opinion import Usage
from dicast.app.domain.price import Place, amount_of, picos, shown

DAY_S = 86_400
PREFIX = "b:"
LEAST_SHARE = 0.005
"""A smaller share of cached input is not told."""


class _Frozen(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


@dataclass(slots=True)
class Spending:
    """Calls, tokens and picos that belong together. The cached, written and reasoning tokens are parts of the input
    and the output; `unknown` is the most that the `unknown_calls` may have cost."""

    calls: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    spent: int = 0
    unknown_calls: int = 0
    unknown_tokens: int = 0
    unknown: int = 0

    def add(self, other: Spending) -> None:
        for name in NAMES.values():
            setattr(self, name, getattr(self, name) + getattr(other, name))


NAMES = {
    "calls": "calls", "in": "input_tokens", "cached": "cached_input_tokens", "written": "cache_write_tokens",
    "out": "output_tokens", "reasoning": "reasoning_tokens", "spent": "spent", "unknown_calls": "unknown_calls",
    "unknown_tokens": "unknown_tokens", "unknown": "unknown",
}  # fmt: skip
"""The parts of the books, as the ledger calls them and as reports do."""


@dataclass(frozen=True, slots=True)
class BookLine:
    """One judge's calls at one place on one day, `day` as in 2026-11-24. `priced` is whether the place has a price."""

    judge: str
    place: Place
    day: str
    spending: Spending = field(default_factory=Spending)

    @property
    def currency(self) -> str:
        return self.place.price.currency if self.place.price is not None else ""


def read_books(record: Mapping[str, str], judges: Sequence[str], places: Sequence[Sequence[Place]]) -> list[BookLine]:
    """Return the books of a job's record, by judge, deployment and day."""
    sums: dict[tuple[int, int, int], Spending] = defaultdict(Spending)
    for name, value in record.items():
        if name.startswith(PREFIX):
            where, _, part = name.removeprefix(PREFIX).partition(":")
            agent, deployment, day = map(int, where.split("."))
            setattr(sums[agent, deployment, day], NAMES[part], int(value))
    lines = []
    for (agent, deployment, day), spending in sorted(sums.items()):
        place = places[agent][deployment] if places else Place("", "")
        date = datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat()
        lines.append(BookLine(judges[agent], place, date, spending))
    return lines


@dataclass(frozen=True, slots=True)
class JobMoney:
    """What a job has spent and what it may, as its record tells: money in picos. `reserved` is for open calls,
    `unheard` for those whose workers were lost; `met` is the cap that ended the job."""

    currency: str = ""
    spent: int = 0
    unknown: int = 0
    reserved: int = 0
    unheard: int = 0
    max_cost: int | None = None
    max_tokens: int | None = None
    max_calls: int | None = None
    met: str | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, str], places: Sequence[Sequence[Place]]) -> Self:
        prices = [place.price for choices in places for place in choices if place.price is not None]
        names = {"reserved": "reserved_cost", "unheard": "unheard_cost"}
        sums = {name: int(record.get(names.get(name, name), 0)) for name in ("spent", "unknown", "reserved", "unheard")}
        caps = {name: int(record[name]) for name in ("max_cost", "max_tokens", "max_calls") if name in record}
        currencies, met = {price.currency for price in prices}, met_words(record.get("capped"))
        return cls(currencies.pop() if len(currencies) == 1 else "", **sums, **caps, met=met)

    def sentence(self) -> str:
        """Return it in words; "" where nothing is known, as of models without a price."""
        if not self.currency:
            return ""
        parts = [f"{shown(amount_of(self.spent), self.currency)} spent"]
        unsure = self.unknown + self.unheard
        parts += [f"{shown(amount_of(self.reserved), self.currency)} reserved"] if self.reserved else []
        parts += [f"at most {shown(amount_of(unsure), self.currency)} of unknown cost"] if unsure else []
        parts += [f"of {shown(amount_of(self.max_cost), self.currency)}"] if self.max_cost is not None else []
        return ", ".join(parts)


# ---------------------------------------------------------------------- budgets
PERIODS = {"day": "today", "month": "this month", "total": "in total"}
"""The periods of budgets, and how people call the present one."""


@dataclass(frozen=True, slots=True)
class MoneyBudget:
    """What the calls of a project, or of a pool, may cost, in picos: `most` by period, of those that have a bound.
    `kind` is 'project' or 'pool'."""

    kind: str
    name: str
    currency: str
    most: Mapping[str, int]

    @classmethod
    def from_table(cls, kind: str, name: str, table: Mapping[str, str]) -> Self:
        most = {period: picos(Decimal(table[period])) for period in PERIODS if period in table}
        return cls(kind, name, table["currency"], most)

    @property
    def purse(self) -> str:
        return purse_name(self.kind, self.name, self.currency)

    @property
    def needs(self) -> str:
        """The budget as a claim is told of it (app/ledger/purses.lua)."""
        return f" {self.purse}={','.join(str(self.most.get(period, '-')) for period in PERIODS)}"

    def objection(self, place: Place) -> str | None:
        """Return why a place may not be called under this budget; None if it may."""
        if place.price is None:
            return (
                f"the {self.kind} {self.name!r} has a budget, and nobody has told what model {place.model!r} of pool "
                f"{place.pool!r} costs; say it in the pools file (price), or install the extra `prices`"
            )
        if place.price.currency != self.currency:
            return (
                f"the {self.kind} {self.name!r} has a budget in {self.currency}, and model {place.model!r} of pool "
                f"{place.pool!r} has its price in {place.price.currency}"
            )
        return None


class BudgetTables(Protocol):
    """See `dicast.config.pools.Pools`."""

    def budgets(self, project: str, pool: str) -> Iterator[tuple[str, str, Mapping[str, str]]]: ...


def budgets_of(pools: BudgetTables, project: str, pool: str) -> list[MoneyBudget]:
    """Return the budgets that a project's calls to a pool must keep."""
    return [MoneyBudget.from_table(*table) for table in pools.budgets(project, pool)]


def purse_name(kind: str, name: str, currency: str) -> str:
    """Return the name of the purse in which the store counts what a project, or a pool, spends in one currency."""
    return f"{kind}:{quote(name, safe='-._~')}:{currency}"


def purse_fields(project: str, places: Sequence[Sequence[Place]]) -> dict[str, str]:
    """Return the fields of a job's record that say in which purses its calls count, by agent and deployment."""
    return {
        f"purses:{agent}.{deployment}": f"{purse_name('project', project, place.price.currency)} "
        f"{purse_name('pool', place.pool, place.price.currency)}"
        for agent, deployments in enumerate(places)
        for deployment, place in enumerate(deployments)
        if place.price is not None
    }


@dataclass(frozen=True, slots=True)
class Purse:
    """What has been spent in one period, in picos. `unknown` is the most that calls may have cost which told no
    tokens, or whose workers were lost."""

    spent: int = 0
    unknown: int = 0

    @classmethod
    def parse(cls, text: str | None) -> Self:
        return cls(*map(int, text.split(","))) if text else cls()


@dataclass(frozen=True, slots=True)
class PurseStanding:
    """The purse of a project or a pool in the present periods, by name; `now_ms` is the store's clock. `reserved` is
    for open calls of those who have a budget, `short` the most that did not fit today."""

    kind: str
    name: str
    currency: str
    now_ms: int
    reserved: int
    short: int
    purses: Mapping[str, Purse]

    @classmethod
    def from_fields(cls, purse: str, now_ms: int, fields: Sequence[str | None]) -> Self:
        """Make a standing of `standing_fields`."""
        reserved, short, *texts = fields
        day, _, asked_for = (short or ",").partition(",")
        is_of_today = day == str(now_ms // (1000 * DAY_S))
        kind, name, currency = purse.split(":")
        purses = {period: Purse.parse(text) for period, text in zip(PERIODS, texts, strict=True)}
        return cls(
            kind, unquote(name), currency, now_ms, int(reserved or 0), int(asked_for) if is_of_today else 0, purses
        )

    def waits(self, budget: MoneyBudget) -> str | None:
        """Return what a call waits for that does not fit into a budget; None if it need not wait."""
        for period, most in budget.most.items():
            purse = self.purses[period]
            if purse.spent + purse.unknown + self.reserved + self.short <= most:
                continue
            unsure = f", {shown(amount_of(purse.unknown), self.currency)} unknown" if purse.unknown else ""
            reset = "" if (at := reset_ms(period, self.now_ms)) is None else f"; resets at {shown_minute(at)}"
            return (
                f"waits: budget of {self.kind} {self.name} for {PERIODS[period]}; spent "
                f"{shown(amount_of(purse.spent), self.currency)} of {shown(amount_of(most), self.currency)}{unsure}, "
                f"the next call may take {shown(amount_of(self.short), self.currency)}{reset}"
            )
        return None


def period_fields(now_ms: int) -> list[str]:
    """Return the fields of a purse in the present periods, in their order (app/ledger/purses.lua)."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    return [f"d:{now_ms // (1000 * DAY_S)}", f"m:{12 * at.year + at.month - 1}", "t"]


def standing_fields(now_ms: int) -> list[str]:
    """Return the fields of a purse that tell its standing."""
    return ["r", "short", *period_fields(now_ms)]


def reset_ms(period: str, now_ms: int) -> int | None:
    """Return when a period ends; None for one that does not."""
    day = datetime.fromtimestamp(now_ms // (1000 * DAY_S) * DAY_S, UTC)
    if period == "total":
        return None
    end = day + timedelta(days=1) if period == "day" else (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    return int(end.timestamp() * 1000)


def shown_minute(ms: int) -> str:
    """Format an instant for people, to the minute."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def met_words(met: str | None) -> str | None:
    """Return which cap or budget ended a job, for people, as its record tells."""
    if met is None or not met.startswith("budget "):
        return met
    purse = met.removeprefix("budget ")
    kind, name, _ = purse.split(":")
    return f"budget of {kind} {unquote(name)}"


class CostLine(_Frozen):
    """One judge's calls at one pool's model on one day. `spent` and `unknown` are null where the model is unpriced."""

    judge: str
    pool: str
    model: str
    day: str
    calls: int = Field(description="made, whatever became of them")
    input_tokens: int
    cached_input_tokens: int = Field(description="of the input, read from the provider's cache")
    cache_write_tokens: int = Field(description="of the input, written to it")
    output_tokens: int
    reasoning_tokens: int = Field(description="of the output, hidden")
    spent: Decimal | None
    unknown_calls: int = Field(description="that may have been charged, and told no tokens")
    unknown: Decimal | None = Field(description="the most that these may have cost")
    currency: str

    @classmethod
    def from_book(cls, line: BookLine) -> Self:
        spending, priced = line.spending, line.place.price is not None
        return cls(
            judge=line.judge, pool=line.place.pool, model=line.place.model, day=line.day, calls=spending.calls,
            input_tokens=spending.input_tokens, cached_input_tokens=spending.cached_input_tokens,
            cache_write_tokens=spending.cache_write_tokens, output_tokens=spending.output_tokens,
            reasoning_tokens=spending.reasoning_tokens, spent=amount_of(spending.spent) if priced else None,
            unknown_calls=spending.unknown_calls, unknown=amount_of(spending.unknown) if priced else None,
            currency=line.currency,
        )  # fmt: skip


class Sum(_Frozen):
    """What was spent in one currency, and at most besides, in calls of unknown cost."""

    currency: str
    spent: Decimal
    unknown: Decimal

    def sentence(self) -> str:
        more = f", and at most {shown(self.unknown, self.currency)} in calls of unknown cost" if self.unknown else ""
        return f"{shown(self.spent, self.currency)}{more}"


class JudgedCost(_Frozen):
    """A judge's share of the money in one dimension: by what the tokens of its answers cost at the standard price."""

    judge: str
    dimension: str
    spent: Decimal
    currency: str


class JobCost(_Frozen):
    """A job's books. `unpriced` names the models, as pool/model, whose calls were counted and whose price nobody has
    told; they are in no sum. `unreported_calls` were begun by workers that ended before they could tell what became of
    them: they are in no line."""

    sums: list[Sum] = []
    lines: list[CostLine] = []
    dimensions: list[JudgedCost] = []
    unpriced: list[str] = []
    unreported_calls: int = 0
    unheard: Decimal | None = Field(default=None, description="of a job with caps, the most that these have cost")
    max_cost: Decimal | None = None
    max_tokens: int | None = None
    max_calls: int | None = None
    met: str | None = Field(default=None, description="the cap that ended the job before all was judged")

    def partial(self) -> str:
        """Return that the job ended before all was judged, and what that means; "" if it did not."""
        if self.met is None:
            return ""
        in_order = (
            "Items were begun in random order, so what was judged is a random sample of all"
            if self.max_cost is not None or self.max_tokens is not None or self.max_calls is not None
            else "Items were begun in their own order, so what was judged is the first part of all, and no sample of it"
        )
        if self.met.startswith("budget"):
            return f"partial: the total {self.met} is spent. {in_order}; `dicast jobs resume` goes on when it is raised"
        amount = shown(self.max_cost, self.sums[0].currency) if self.max_cost is not None and self.sums else ""
        cap = amount if self.met == "max_cost" else f"{getattr(self, self.met) or 0:,}"
        return f"partial: its {self.met} of {cap} is met. {in_order}; `dicast jobs resume` goes on with a higher cap"

    def item_costs(self, scored: Mapping[str, int], dimensions: int) -> tuple[list[float], str] | None:
        """Return what each judge has cost an item, in the order of `scored`, its numbers of scores, and the currency;
        None where that is not known of all in one currency."""
        spent: dict[str, Decimal] = defaultdict(Decimal)
        for line in self.lines:
            if line.spent is None:
                return None
            spent[line.judge] += line.spent
        if len(self.sums) != 1 or not all(scored.values()) or spent.keys() != scored.keys():
            return None
        costs = [float(spent[judge] * dimensions / count) for judge, count in scored.items()]
        return costs, self.sums[0].currency

    @property
    def cached_share(self) -> float:
        """The share of the input that was read from providers' caches."""
        whole = sum(line.input_tokens for line in self.lines)
        return sum(line.cached_input_tokens for line in self.lines) / whole if whole else 0.0

    def spent(self) -> str:
        """Return what is known to be spent, as short as it can be said; "" where no call had a price."""
        return " + ".join(shown(total.spent, total.currency) for total in self.sums)

    def besides(self) -> list[str]:
        """Return in words what is in no sum, for want of a price: one entry or none."""
        return [f"besides, the unpriced calls of {', '.join(self.unpriced)}"] if self.unpriced else []

    def sentence(self) -> str:
        """Return the cost in words, with whatever is not known of it."""
        parts = [total.sentence() for total in self.sums]
        if self.cached_share >= LEAST_SHARE:
            parts.append(f"{self.cached_share:.0%} of the input read from providers' caches")
        parts += self.besides() if parts else [words.removeprefix("besides, ") for words in self.besides()]
        if self.unreported_calls:
            parts.append(f"at most {self.unreported_calls:,} calls that nobody has told of")
        return "; ".join(parts)


def cost_of(
    lines: Iterable[BookLine], answers: Mapping[tuple[str, str], Usage] | None = None, unreported: int = 0,
    standing: JobMoney | None = None,
) -> JobCost:  # fmt: skip
    """Return the cost that books tell. `answers` are the tokens of the answers, by judge and dimension."""
    standing = standing or JobMoney()
    unheard = standing.unheard + standing.reserved  # no call is open when a job has ended
    lines = list(lines)
    sums: dict[str, Spending] = defaultdict(Spending)
    for line in lines:
        if line.place.price is not None:
            sums[line.currency].add(line.spending)
    unpriced = [f"{line.place.pool}/{line.place.model}" for line in lines if line.place.price is None]
    return JobCost(
        sums=[
            Sum(currency=currency, spent=amount_of(amount.spent), unknown=amount_of(amount.unknown))
            for currency, amount in sorted(sums.items())
        ],
        lines=[CostLine.from_book(line) for line in lines],
        dimensions=_by_dimension(lines, answers or {}),
        unpriced=list(dict.fromkeys(unpriced)),
        unreported_calls=unreported,
        unheard=amount_of(unheard) if unheard else None,
        max_cost=None if standing.max_cost is None else amount_of(standing.max_cost),
        max_tokens=standing.max_tokens,
        max_calls=standing.max_calls,
        met=standing.met,
    )


def _by_dimension(lines: Sequence[BookLine], answers: Mapping[tuple[str, str], Usage]) -> list[JudgedCost]:
    """Divide what each judge has spent among its dimensions, so that the parts add up to the whole."""
    divided = []
    for judge in dict.fromkeys(line.judge for line in lines):
        priced_lines = [line for line in lines if line.judge == judge and line.place.price is not None]
        weights = {
            dimension: _weight(priced_lines, usage) for (name, dimension), usage in answers.items() if name == judge
        }
        whole = sum(weights.values())
        if not priced_lines or not whole or len({line.currency for line in priced_lines}) > 1:
            continue
        spent, before = sum(line.spending.spent for line in priced_lines), 0
        for dimension, weight in weights.items():
            # The difference of two rounded sums: nothing is lost or counted twice.
            part = spent * (before + weight) // whole - spent * before // whole
            before += weight
            divided.append(
                JudgedCost(judge=judge, dimension=dimension, spent=amount_of(part), currency=priced_lines[0].currency)
            )
    return divided


def _weight(lines: Sequence[BookLine], usage: Usage) -> int:
    price = lines[0].place.price if lines else None
    return price.cost(usage) if price is not None else 0
