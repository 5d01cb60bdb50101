"""Random histories of a job, once as they are and once with commands that come again, at once or much later.

Two nodes and a sweeper do what they like with a job of two pages: claim, answer, defer, die, come back, disown, sweep,
adopt each other's answers. Nobody may see a difference: the same answers, the same store at the end, the same books.
"""

import random
import secrets
from dataclasses import replace

import pytest

from dicast.app.domain.plan import lanes
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, MessageId, UnitResult
from tests.ledger.bench import KEYS, a_job
from tests.ledger.repeating import NOW, Stage, one_incarnation

__all__ = ["one_incarnation"]

UNITS, PAGE = 12, 6
STEPS = 150
LATE_IN = 40
"""Steps after which a command that was obeyed comes once more, at most."""


class History:
    """One seed's job. `told` are the claims that have told their end, once each: what the provider's own log has."""

    def __init__(self, stage, seed):
        self.stage, self.chance = stage, random.Random(seed)
        self.ledgers = [stage.one, stage.two]
        self.trace, self.held, self.told = [], [], {}
        self.opened = 0

    # ------------------------------------------------------------------ what may happen
    async def claim(self):
        node, position = self.chance.randrange(2), self.chance.randrange(UNITS)
        ref = PageRef("j", NOW, 0, position // PAGE)
        if self.dead(node) or ref.page >= self.opened:
            return
        again_ms = self.chance.choice([None, 500])
        state, _, claims = await self.ledgers[node].claim(ref, MessageId(position), [position], 0, again_ms=again_ms)
        self.note("claim", node, ref, position, state, claims)
        self.held += [
            (node, ref, c)
            for c in claims
            if c.verdict not in {ClaimVerdict.OWNED, ClaimVerdict.WAITING, ClaimVerdict.DONE}
        ]

    async def end(self):
        """A claim tells its end: often soon, sometimes when nobody expects it any more."""
        if not self.held:
            return
        node, ref, claim = self.held.pop(self.chance.randrange(max(0, len(self.held) - 4), len(self.held)))
        counters = {"calls": 1, "tokens_in": self.chance.randrange(1, 50)}
        self.told[ref, claim.position, claim.fence] = counters
        teller = self.ledgers[node]
        if self.chance.random() < 0.6 or claim.verdict is not ClaimVerdict.RUN:
            results = [UnitResult(claim.position, claim.fence, b"{}", self.chance.random() < 0.8)]
            times = self.chance.choice([1, 1, 1, 2])  # two have adopted the same spooled answer
            for ledger in [teller, self.stage.two][:times]:
                recorded = await ledger.record(ref, counters, results)
                self.note("record", ref, claim.position, replace(recorded, news=True))
        else:
            deferral = Deferral(claim.position, claim.fence, claim.attempts + 1, 0, int(self.chance.random() < 0.3))
            due = [Due(MessageId(claim.position), self.chance.choice([0, 3000]))]
            self.note("defer", ref, claim.position, await teller.defer(ref, counters, [deferral], due))

    async def take_due(self):
        node = self.chance.randrange(2)
        due = await self.ledgers[node].take_due()
        self.note("due", node, [(ref, token) for ref, token in due if not self.is_done(ref, token.position)])

    async def time_goes_by(self):
        self.stage.clock.ms += self.chance.choice([100, 2000, 20_000])

    async def die_or_return(self):
        node = self.chance.randrange(2)
        if self.dead(node):
            self.stage.redis.set(KEYS.node(self.stage.nodes[node]), "heard")
        else:
            self.stage.kill(node)

    async def release_claims(self):
        node, ref = self.chance.randrange(2), PageRef("j", NOW, 0, self.chance.randrange(2))
        held = await self.ledgers[node].list_claims(ref)
        lost = {p: fence for p, fence in held.items() if self.chance.random() < 0.5}
        if lost:
            self.note("release_claims", ref, await self.ledgers[node].release_claims(ref, lost))

    async def sweep(self):
        ref = PageRef("j", NOW, 0, self.chance.randrange(2))
        self.note("sweep", ref, await self.stage.two.find_lost(ref, 1, queue_empty=self.chance.random() < 0.5))

    async def gather(self):
        node, ref = self.chance.randrange(2), PageRef("j", NOW, 0, self.chance.randrange(2))
        page = await self.ledgers[node].take_page(ref)
        if page:
            self.note("close", ref, page, await self.ledgers[node].close_page(ref, 1))

    async def plan(self):
        page, cursor = min(self.opened, 1), "" if self.opened else "more"
        opened = await self.stage.one.open_page(PageRef("j", NOW, 0, page), page * PAGE, PAGE, cursor, 2, {})
        self.note("plan", page, opened)
        self.opened += opened >= 0

    # ------------------------------------------------------------------ the whole
    def is_done(self, ref, position):
        return self.stage.redis.hexists(self.stage.one.keys.page(ref), f"r:{position}")

    def dead(self, node):
        return not self.stage.redis.exists(KEYS.node(self.stage.nodes[node]))

    def note(self, *what):
        self.trace.append(what)

    async def run(self, between):
        job = a_job(items=UNITS, dimensions=1)
        self.stage.client.submit(job, lanes([("p",)], 1, 1, [False]), UNITS, {})
        await self.stage.one.start("j", 5)
        await self.plan()
        likely = [self.claim] * 8 + [self.end] * 8 + [self.take_due] * 3 + [self.time_goes_by] * 2
        acts = [*likely, self.die_or_return, self.release_claims, self.sweep, self.gather, self.plan]
        for _ in range(STEPS):
            await self.chance.choice(acts)()
            await between()
        for node in self.stage.nodes:
            self.stage.redis.set(KEYS.node(node), "heard")
        while self.held:
            await self.end()


async def lived(url, seed, monkeypatch, repeats=lambda: 0, late=0.0):
    """A history on an empty database; `late` is the share of commands that come once more long after."""
    numbers, chance, waiting = iter(range(10**6)), random.Random(seed + 1), []
    monkeypatch.setattr(secrets, "token_hex", lambda n: f"{next(numbers):0{2 * n}x}")
    Stage(url).redis.flushdb()

    def keep(name, act):
        if name in COMES_LATE and chance.random() < late:
            waiting.append((chance.randrange(LATE_IN), act))

    async def between():
        ready, waiting[:] = [w for w in waiting if w[0] <= 0], [(n - 1, act) for n, act in waiting if n > 0]
        for _, act in ready:
            await act()

    stage = Stage(url, repeats, keep)
    history = History(stage, seed)
    await history.run(between)
    for _ in range(LATE_IN):
        await between()
    for member in stage.redis.zrange(stage.one.keys.due, 0, -1):
        if history.is_done(PageRef.parse(member.rpartition("|")[0]), member.rpartition("|")[2]):
            stage.redis.zrem(stage.one.keys.due, member)  # a message more or less, which finds its unit done
    dump = stage.dump()
    await stage.close()
    return history, dump


COMES_LATE = {"claim", "record", "defer", "release_claims", "open_page", "close_page", "start"}
"""Of the others a late copy costs a message, a look or a gathering too many."""


@pytest.mark.parametrize("late", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(20))
async def test_commands_that_come_again_change_nothing(redis_url, monkeypatch, seed, late):
    before, wanted = await lived(redis_url, seed, monkeypatch)
    chance = random.Random(seed)
    after, found = await lived(redis_url, seed, monkeypatch, repeats=lambda: chance.choice([0, 0, 1, 1, 2]), late=late)
    assert after.trace == before.trace
    assert found == wanted


@pytest.mark.parametrize("seed", range(20))
async def test_the_books_are_those_of_who_was_paid(redis_url, monkeypatch, seed):
    """Each claim's end is counted once: what it brought, what it deferred, and what came too late."""
    chance = random.Random(seed)
    history, dump = await lived(redis_url, seed, monkeypatch, lambda: chance.choice([0, 1]), late=0.3)
    job = dump[KEYS.at("job", "j")][0]
    assert int(job.get("calls", 0)) == len(history.told)
    assert int(job.get("tokens_in", 0)) == sum(counters["tokens_in"] for counters in history.told.values())
    assert int(job.get("done", 0)) == int(job.get("scored", 0)) + int(job.get("failed", 0)) <= UNITS
