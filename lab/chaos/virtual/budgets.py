"""The budgets of some worlds: small ones for good, and such of a day or a month that others have nearly spent, and that
begin anew while the world lasts. None may be passed, and purses must agree with the provider's books."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dicast.app.domain.cost import PERIODS, MoneyBudget, Purse, period_fields
from dicast.app.ledger.keys import LedgerKeys
from lab.chaos.virtual.jobs import PRICE, charge_of

if TYPE_CHECKING:
    from lab.chaos.virtual.world import VirtualCall, World

BUDGETED_SHARE = 0.3
MIDNIGHT_S = 25.0
"""When a new day, and a new month, begins in such a world."""
LARGE = 10**14
UNHEARD = frozenset({"hung", "cut", "killed"})


def give_budgets(world: World, pools: Sequence[str]) -> None:
    """Give a world budgets by chance. Drawn aside, so that the same seeds make the same worlds otherwise."""
    chance = random.Random(f"budgets {world.seed}")
    if chance.random() >= BUDGETED_SHARE:
        return
    world.starts_s = 31 * 86_400 - MIDNIGHT_S
    for kind, name in [("project", "red"), ("project", "blue"), *(("pool", pool) for pool in pools)]:
        if chance.random() < 0.6:
            period = chance.choice(list(PERIODS))
            left = chance.randint(6_000, 60_000) * PRICE.rates.input
            budget = MoneyBudget(kind, name, PRICE.currency, {period: left if period == "total" else LARGE})
            before = 0 if period == "total" else LARGE - left
            world.budgets.append((budget, before))
            field = period_fields(world.wall_us() // 1000)[list(PERIODS).index(period)]
            world.client.hset(LedgerKeys(world.keys).purse(budget.purse), field, f"{before},0")


def budgets_in(world: World, project: str, pool: str) -> list[MoneyBudget]:
    """Return the budgets that a project's calls to a pool must keep."""
    return [
        budget for budget, _ in world.budgets if (budget.kind, budget.name) in (("project", project), ("pool", pool))
    ]


def check_budgets(world: World) -> Iterator[str]:
    """All that is wrong with the budgets of a world at rest."""
    for budget, before in world.budgets:
        ((period, most),) = budget.most.items()
        calls = [call for call in world.calls if _counts(world, call, budget)]
        fields = world.client.hgetall(LedgerKeys(world.keys).purse(budget.purse))
        if (reserved := int(fields.get("r", 0))) != 0:
            yield f"budgets: {reserved} reserved at rest in {budget.purse}"
        for field, text in fields.items():
            purse = Purse() if field in ("r", "short") else Purse.parse(text)
            if field[0] == period[0] and purse.spent + purse.unknown > most:
                yield f"budgets: {purse} of {most} in {field} of {budget.purse}"
            if field == "t":
                yield from _total(purse, calls, budget)
        if world.wall_step_s and period != "total":  # nobody can say which day it was
            continue
        bound = [call for call in calls if period == "total" or call.began < MIDNIGHT_S]
        if (charged := before + _charged(bound)) > most:
            yield f"budgets: {charged} charged of {most} in the first {period} of {budget.purse}"


def _total(purse: Purse, calls: Sequence[VirtualCall], budget: MoneyBudget) -> Iterator[str]:
    """What is spent ever is what the provider has charged, but for calls of which nobody could tell."""
    charged = _charged(calls)
    told = _charged([call for call in calls if not call.excused and call.ending not in UNHEARD])
    if not told <= purse.spent <= charged <= purse.spent + purse.unknown:
        yield f"budgets: {charged} charged, {told} of it told, {purse} in {budget.purse}"


def _charged(calls: Sequence[VirtualCall]) -> int:
    return sum(charge_of(call) for call in calls)


def _counts(world: World, call: VirtualCall, budget: MoneyBudget) -> bool:
    job = world.texts[call.places[0].text]
    return budget.name == (job.job.project if budget.kind == "project" else call.pool)
