"""What calls have cost: the books of the jobs that the store holds, and of earlier ones by their reports.

Results that were deleted are in no sum. What budgets count is not lost with them (`read_purses` in app/ledger/work.py).
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.cost import (
    PERIODS,
    CostLine,
    MoneyBudget,
    PurseStanding,
    budgets_of,
    reset_ms,
    shown_minute,
)
from dicast.app.domain.price import amount_of, shown
from dicast.app.ledger.work import read_purses
from dicast.app.reports.files import REPORT
from dicast.errors import DicastError, alternatives

if TYPE_CHECKING:
    from dicast.app.application import Dicast

SpendKey = Literal["project", "job", "judge", "pool", "model", "day"]
KEYS: tuple[SpendKey, ...] = get_args(SpendKey)
BY_DEFAULT: tuple[SpendKey, ...] = ("project", "pool", "model")


class WrongSpendKey(DicastError, ValueError):
    """Spending is to be told by something that there is not."""


class SpendLine(BaseModel):
    """What one judge of a job has spent at one place on one day."""

    model_config = ConfigDict(frozen=True)

    project: str
    job: str
    pools: frozenset[str] = Field(description="all to which the job goes")
    cost: CostLine


class Spend(BaseModel):
    """A sum of spending in one currency. What it is by is set, and nothing else: of `project` to `day`. Unpriced calls
    are counted in `unpriced_calls`, and in no amount."""

    project: str | None = None
    job: str | None = None
    judge: str | None = None
    pool: str | None = None
    model: str | None = None
    day: str | None = Field(default=None, description="of UTC")
    currency: str = Field(description="'' for calls without a price")
    calls: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    spent: Decimal = Decimal(0)
    unknown_calls: int = 0
    unknown: Decimal = Field(default=Decimal(0), description="the most that these may have cost")
    unpriced_calls: int = 0


class BudgetStanding(BaseModel):
    """Tells where a budget stands in its present period."""

    kind: str = Field(description="project or pool")
    name: str
    period: str = Field(description="day, month or total")
    currency: str
    budget: Decimal
    spent: Decimal
    reserved: Decimal = Field(description="for open calls")
    unknown: Decimal = Field(description="the most that calls may have cost which told no tokens; counts as spent")
    resets: str | None = Field(description="when it begins anew; null for a total")

    def sentence(self) -> str:
        """Return it in words."""
        parts = [f"{shown(self.spent, self.currency)} spent"]
        parts += [f"{shown(self.reserved, self.currency)} reserved"] if self.reserved else []
        parts += [f"at most {shown(self.unknown, self.currency)} of unknown cost"] if self.unknown else []
        resets = f"; resets at {self.resets}" if self.resets else ""
        budget = shown(self.budget, self.currency)
        return f"budget of {self.kind} {self.name} for {PERIODS[self.period]}: {', '.join(parts)}, of {budget}{resets}"


def budget_standings(dicast: Dicast) -> list[BudgetStanding]:
    """Return where all budgets of the pools file stand. The budget of '*' stands with each project that has spent
    anything."""
    purse_list = [] if dicast.nothing_stored else read_purses(dicast.store, dicast.keys)
    purses = {f"{purse.kind}:{purse.name}:{purse.currency}": purse for purse in purse_list}
    projects = {purse.name for purse in purses.values() if purse.kind == "project"}
    budgets = {
        (budget.kind, budget.name): budget
        for project in projects | dicast.pools.projects.keys() - {"*"} | {""}
        for pool in dicast.pools.pools
        for budget in budgets_of(dicast.pools, project, pool)
        if budget.name
    }
    now_ms = int(time.time() * 1000) if dicast.nothing_stored else dicast.ledger.wall_ms()
    nothing = [None] * (2 + len(PERIODS))
    standings = []
    for (kind, name), budget in sorted(budgets.items()):
        purse = purses.get(f"{kind}:{name}:{budget.currency}")
        standing = purse or PurseStanding.from_fields(budget.purse, now_ms, nothing)
        standings += [_standing(budget, standing, period) for period in budget.most]
    return standings


def _standing(budget: MoneyBudget, standing: PurseStanding, period: str) -> BudgetStanding:
    purse, resets_ms = standing.purses[period], reset_ms(period, standing.now_ms)
    return BudgetStanding(
        kind=budget.kind,
        name=budget.name,
        period=period,
        currency=budget.currency,
        budget=amount_of(budget.most[period]),
        spent=amount_of(purse.spent),
        reserved=amount_of(standing.reserved),
        unknown=amount_of(purse.unknown),
        resets=None if resets_ms is None else shown_minute(resets_ms),
    )


COUNTS = (
    "calls", "input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens",
    "unknown_calls",
)  # fmt: skip


def spend_keys(text: str) -> tuple[SpendKey, ...]:
    """Parse 'project,day'. Raises `WrongSpendKey`."""
    keys = [part.strip() for part in text.split(",")]
    for key in keys:
        if key not in KEYS:
            raise WrongSpendKey(f"spending is told by {', '.join(KEYS)}, got {key!r}{alternatives(key, KEYS)}")
    return tuple(key for key in KEYS if key in keys)


def spend_lines(dicast: Dicast, since: str = "") -> Iterator[SpendLine]:
    """Yield the books of all jobs, from a day on if one is given, as in 2026-11-24."""
    stored: set[tuple[str, str]] = set()
    for job in dicast.existing_ledger.books():
        stored.add((job.job, job.incarnation))
        pools = frozenset(job.pools)
        for line in job.books:
            if line.day >= since:
                yield SpendLine(project=job.project, job=job.job, pools=pools, cost=CostLine.from_book(line))
    for report in _reports(Path(dicast.settings.results_dir), stored):
        pools = frozenset(pool for agent in report["agents"] for pool in agent["pool"].split(", "))
        for fields in report["cost"].get("lines", []):
            if fields["day"] >= since:
                cost = CostLine.model_validate(fields)
                yield SpendLine(project=report["project"], job=report["job_id"], pools=pools, cost=cost)


def _reports(root: Path, stored: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the reports with books of jobs that the store holds no more. A damaged one has no books."""
    for path in sorted(root.glob(f"*/{REPORT}")):
        try:
            report = orjson.loads(path.read_bytes())
            incarnation = (path.parent / "incarnation").read_text().strip()
        except (OSError, ValueError):
            continue
        has_books = isinstance(report, dict) and {"job_id", "project", "cost", "agents"} <= report.keys()
        if has_books and (report["job_id"], incarnation) not in stored:
            yield report


def summed(lines: Iterable[SpendLine], by: Sequence[SpendKey] = BY_DEFAULT) -> list[Spend]:
    """Return the sums of spending by these keys, in their order."""
    sums: dict[tuple[str, ...], Spend] = {}
    for line in lines:
        names = {"project": line.project, "job": line.job}
        key = tuple(names[name] if name in names else getattr(line.cost, name) for name in by)
        total = sums.setdefault(
            (*key, line.cost.currency), Spend(currency=line.cost.currency, **dict(zip(by, key, strict=True)))
        )
        for name in COUNTS:
            setattr(total, name, getattr(total, name) + getattr(line.cost, name))
        if line.cost.spent is None:
            total.unpriced_calls += line.cost.calls
        else:
            total.spent += line.cost.spent
            total.unknown += line.cost.unknown or 0
    return [sums[key] for key in sorted(sums)]


def spend_csv(sums: Sequence[Spend], by: Sequence[SpendKey]) -> str:
    """Return sums as CSV. Amounts are exact, and a text that a spreadsheet would compute is none any more."""
    columns = [*by, *(name for name in Spend.model_fields if name not in KEYS)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for total in sums:
        writer.writerow([_csv_cell(getattr(total, name)) for name in columns])
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return f"{value:f}" if isinstance(value, Decimal) else value
