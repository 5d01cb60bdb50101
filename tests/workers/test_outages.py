"""A pool that is down is known to be, in the store, from the first failed call until one is answered."""

from dataclasses import replace

import pytest

from dicast.workers.admission.leases import LeaseStore, Returned, Want
from dicast.workers.admission.pool_state import Outage, Outages, findings
from dicast.workers.policy.calls import CallOutcome
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.store.connection import connect_async
from dicast.workers.store.keys import Keys
from tests.workers.pools import obey, parameters
from tests.workers.test_pool_state import CALM, WAITING

KEYS = Keys("test")
START_MS = 1_000_000


class Pool:
    """Calls of one pool at instants that a test chooses, s."""

    def __init__(self, client):
        self.client, self.store, self.n = client, LeaseStore(client, KEYS), 0

    async def open(self, at):
        self.n += 1
        answer = await self.store.admit(
            pool="p", node="n", ttl_ms=60_000, give_back=[], wants=[Want(f"l{self.n}", "j", "proj")],
            now_ms=START_MS + round(1000 * at),
        )  # fmt: skip
        return answer, f"l{self.n}"

    async def end(self, lease, at, status, reporter="u", error=""):
        given = Returned(lease, CallOutcome(status, reporter=reporter, error=error))
        now_ms = START_MS + round(1000 * at)
        await self.store.admit(pool="p", node="n", ttl_ms=60_000, give_back=[given], wants=[], now_ms=now_ms)

    async def call(self, at, status, took=1.0, **told):
        _, lease = await self.open(at)
        await self.end(lease, at + took, status, **told)

    async def outage(self):
        return (await Outages(self.client, KEYS).read(["p"]))["p"].outage


@pytest.fixture
async def pool(redis_url):
    client = connect_async(redis_url)
    await obey(client, KEYS, "p", parameters())
    await client.hset(KEYS.job_limits, "j", 10)
    yield Pool(client)
    await client.aclose()


async def test_an_outage_begins_with_the_first_of_a_row_of_failed_calls(pool):
    await pool.call(0, 200)
    for n, status in enumerate((503, 0, 500)):
        await pool.call(10 + n, status, reporter=f"u{n % 2}", error=f"error {n}")
    outage = await pool.outage()
    assert outage == Outage(START_MS / 1000 + 10, START_MS / 1000 + 13, 3, 2, 500, "error 2")
    assert outage.is_down


@pytest.mark.parametrize("status, ends", [(200, True), (400, True), (429, False), (529, False), (503, False)])
async def test_it_ends_with_an_answer_to_a_later_call(pool, status, ends):
    for n in range(3):
        await pool.call(n, 503)
    await pool.call(5, status)
    assert (await pool.outage() is None) == ends


async def test_an_answer_to_an_earlier_call_does_not_end_it(pool):
    _, slow = await pool.open(0)
    for n in range(1, 4):
        await pool.call(n, 503)
    await pool.end(slow, 6, 200)
    assert (await pool.outage()).failures == 3


async def test_a_call_that_hung_long_does_not_date_it_before_an_answer(pool):
    _, slow = await pool.open(0)
    await pool.call(50, 200)
    await pool.end(slow, 60, 0)
    assert (await pool.outage()).since == START_MS / 1000 + 50


async def test_refusals_count_for_the_probe_alone(pool):
    await pool.call(0, 529)
    assert await pool.outage() is None
    await obey(pool.client, KEYS, "p", parameters(breaker=BreakerPhase.HALF_OPEN, break_number=1))
    await pool.call(1, 529)
    assert (await pool.outage()).failures == 1


async def test_whoever_is_granted_the_probe_knows_it_again_when_the_answer_was_lost(pool):
    assert (await pool.open(0))[0].probe is None
    await obey(pool.client, KEYS, "p", parameters(breaker=BreakerPhase.HALF_OPEN, break_number=1))
    wants = [Want("a", "j", "proj"), Want("b", "j", "proj")]
    for _ in range(2):
        answer = await pool.store.admit(
            pool="p", node="n", ttl_ms=60_000, give_back=[], wants=wants[::-1], now_ms=START_MS + 5000
        )
        assert (list(answer.verdicts), answer.probe) == ([1, 0], 0)


async def test_names_and_errors_of_any_kind_are_told(pool):
    for n in range(3):
        await pool.call(n, 0, reporter="\u00fc|%", error="x" * 500 + "\udc80")
    outage = await pool.outage()
    assert (outage.units, len(outage.error)) == (1, 200)
    await pool.call(3, 0, error="\udc80")
    assert (await pool.outage()).error == "?"


def test_operators_are_told_since_when_and_of_what():
    outage = Outage(since=958.0, at=995.0, failures=7, units=7, status=503, error="status 503: bad day")
    told = "it has been down for 42 s: 7 calls have failed in a row, the last 5 s ago (last error: status 503: bad day)"
    assert findings(replace(CALM, outage=outage)) == [told]
    assert findings(replace(CALM, outage=replace(outage, failures=2))) == [], "bad luck"
    long_ago = replace(CALM, outage=replace(outage, since=0.0, at=300.0), open=0, projects={})
    assert findings(long_ago) == [], "nobody tries it"
    (told,) = findings(replace(long_ago, projects=WAITING))
    assert told.startswith("it has been down for 17 min: 7 calls have failed in a row, the last 12 min ago")
