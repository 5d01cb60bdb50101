"""What the store remembers of a pool, with thousands of projects and of models."""

import pytest

from dicast.workers.admission.governor_store import GovernorStore
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Returned, Want
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import Bucket
from dicast.workers.store.connection import connect_async
from dicast.workers.store.keys import Keys
from tests.workers.pools import obey, parameters

KEYS = Keys("test")
TTL_MS = 60_000
CROWD = """
local state = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'enforcement'))
for n = 1, tonumber(ARGV[1]) do
  state.projects['p' .. n] = {open = 0, service = 0, asked_at = tonumber(ARGV[2]), waiting = true}
  redis.call('HSET', KEYS[2], 'o:pool|p' .. n, n)
end
redis.call('HSET', KEYS[1], 'enforcement', cmsgpack.pack(state))
"""


class Pool:
    """One pool, asked for leases by one node; `now_ms` moves by hand."""

    def __init__(self, client):
        self.client, self.leases, self.now_ms, self.asked = client, LeaseStore(client, KEYS), 1_000_000, 0

    async def ask(self, *models, give_back=(), project="p"):
        wants = [Want(f"l{self.asked + n}", "j", project, model) for n, model in enumerate(models)]
        self.asked += len(models)
        answer = await self.leases.admit(
            pool="pool", node="n", ttl_ms=TTL_MS, give_back=list(give_back), wants=wants, now_ms=self.now_ms
        )
        return [w.lease for w, v in zip(wants, answer.verdicts, strict=True) if v is LeaseVerdict.GRANTED]

    async def remembered(self):
        return await GovernorStore(self.client, KEYS).enforcement("pool")


@pytest.fixture
async def pool(redis_url):
    client = connect_async(redis_url)
    await client.hset(KEYS.job_limits, "j", 100_000)
    await obey(client, KEYS, "pool", parameters(limit=100_000))
    yield Pool(client)
    await client.aclose()


async def test_twenty_thousand_projects_share_a_pool(pool):
    """Lua's stack has room for some 8,000 arguments."""
    assert await pool.ask("")
    await pool.client.eval(CROWD, 2, KEYS.governor("pool"), KEYS.open, 20_000, pool.now_ms / 1000)
    assert await pool.ask("")
    projects = (await pool.remembered())["projects"]
    assert all(projects[f"p{n}"]["open"] == n for n in range(1, 20_001))


async def test_models_that_nobody_uses_any_more_are_forgotten(pool):
    """So that a pool costs what its present models cost, however many there have been."""
    for first in range(0, 3000, 500):
        open_calls = await pool.ask(*(f"m{n}" for n in range(first, first + 500)))
        await pool.ask(give_back=[Returned(call) for call in open_calls])
    still_open = await pool.ask("open")
    size = await pool.client.hstrlen(KEYS.governor("pool"), "enforcement")
    bucket = Bucket("requests:limited", BudgetUnit.REQUESTS, "m7", 100.0, 1.0)
    await obey(pool.client, KEYS, "pool", parameters(limit=100_000, version=2, buckets=(bucket,)))

    pool.now_ms += TTL_MS - 1
    await pool.ask("new")
    assert len((await pool.remembered())["spent"]) > 3000  # a call of each might be open still

    pool.now_ms += 1
    await pool.ask(give_back=[Returned(call) for call in still_open])
    again = await pool.ask("open")
    pool.now_ms += 10_001
    await pool.ask("new")
    assert set((await pool.remembered())["spent"]) == {"", "m7", "open", "new"}
    assert again
    assert await pool.client.hstrlen(KEYS.governor("pool"), "enforcement") < size / 50


async def test_a_forgotten_model_fills_no_bucket_beyond_its_capacity(pool):
    """A decision may be older than what was forgotten: its count of what was spent then means nothing."""
    await pool.ask("m")
    bucket = Bucket(
        "requests:m", BudgetUnit.REQUESTS, "m", 5.0, 1.0, snapshot=3, level=4.0, spent=1e6, dated_at=pool.now_ms / 1000
    )
    await obey(pool.client, KEYS, "pool", parameters(limit=100_000, version=2, buckets=(bucket,)))
    assert len(await pool.ask(*["m"] * 50)) == 5
