"""Leases on a real server: the cap holds, and counts equal leases, whatever happens."""

import asyncio
import json
import random

import pytest
import redis.asyncio

from dicast.workers.admission.leases import Holder, LeaseStore, LeaseVerdict, Returned, Want, open_leases, read_holder
from dicast.workers.nodes.registry import Node, OrderKind, Orders, Registry
from dicast.workers.policy.calls import CallOutcome
from dicast.workers.store.connection import connect, connect_async
from dicast.workers.store.keys import Keys
from tests.workers.pools import obey, parameters

KEYS = Keys("test")
TTL_MS = 60_000
G, R, P = LeaseVerdict.GRANTED, LeaseVerdict.DENIED, LeaseVerdict.PASS


@pytest.fixture
async def client(redis_url):
    client = connect_async(redis_url)
    for pool in ("p", "wide", "p0", "p1", "p2"):
        await obey(client, KEYS, pool, parameters())
    yield client
    await client.aclose()


@pytest.fixture
def store(client):
    return LeaseStore(client, KEYS)


class Asker:
    """Asks one store for leases under short names; `now_ms` moves by hand."""

    def __init__(self, store, pool="p", node="n"):
        self.store, self.pool, self.node, self.now_ms = store, pool, node, 1_000_000

    async def __call__(self, *wanted, give_back=(), job="j", ttl_ms=TTL_MS, cut_frees=True):
        wants = [w if isinstance(w, Want) else Want(w, job, "proj") for w in wanted]
        return await self.store.admit(
            pool=self.pool, node=self.node, ttl_ms=ttl_ms, give_back=list(give_back), wants=wants,
            cut_frees=cut_frees, now_ms=self.now_ms,
        )  # fmt: skip


async def limit(client, **jobs):
    await client.hset(KEYS.job_limits, mapping=jobs)


async def check_books(client):
    """The counts are those of the leases, and none is negative."""
    holders = await client.hgetall(KEYS.holders)
    want: dict[str, int] = {}
    for record in holders.values():
        pool, job, project, *_ = read_holder(record)
        for field in ("all", f"p:{pool}", f"j:{job}", f"o:{pool}|{project}"):
            want[field] = want.get(field, 0) + 1
    have = {k: int(v) for k, v in (await client.hgetall(KEYS.open)).items() if int(v) != 0}
    assert have == want
    assert set(holders) == set(await client.zrange(KEYS.leases, 0, -1))


async def test_grants_up_to_the_limit_in_order(client, store):
    await limit(client, j=2)
    admission = await Asker(store)("a", "b", "c")
    assert admission.verdicts == [G, G, R]
    assert (admission.reason, admission.open_in_pool, admission.open_in_all) == ("total_limit", 2, 2)
    await check_books(client)


async def test_giving_back_and_asking_is_one_step(client, store):
    await limit(client, j=1)
    ask = Asker(store)
    await ask("a")
    assert (await ask("b", give_back=["a"])).verdicts == [G]
    assert (await ask("c", give_back=["a"])).verdicts == [R]  # given back twice is once
    await check_books(client)


async def test_an_ask_whose_answer_was_lost_is_repeated_and_counts_once(client, store):
    """The store's client sends a command again when its connection breaks, though the server may have obeyed it."""
    await limit(client, j=2)
    ask = Asker(store)
    assert (await ask("a")).verdicts == [G]
    assert (await ask("a", "b", "c")).verdicts == [G, G, R]
    await check_books(client)
    await ask(give_back=["a", "b"])
    assert await client.hgetall(KEYS.open) == {}


async def test_a_lease_that_is_named_twice_in_a_step_counts_once(client, store):
    await limit(client, j=2)
    ask = Asker(store)
    assert (await ask("a", "a", "b", "c")).verdicts == [G, G, G, R]
    await check_books(client)
    assert (await ask("c", "d", give_back=["a", "a"])).verdicts == [G, R]
    await check_books(client)


async def test_a_jobs_frozen_limit_binds_it_and_the_largest_binds_all(client, store):
    await limit(client, small=1, large=3)
    ask = Asker(store)
    wants = [Want(f"s{i}", "small", "p") for i in range(2)] + [Want(f"l{i}", "large", "p") for i in range(4)]
    assert (await ask(*wants)).verdicts == [G, R, G, G, R, R]
    await check_books(client)


async def test_a_pools_limit_binds_only_that_pool(client, store):
    await limit(client, j=10)
    await obey(client, KEYS, "narrow", parameters(1))
    assert (await Asker(store, "narrow")("a", "b")).verdicts == [G, R]
    assert (await Asker(store, "wide")("c", "d")).verdicts == [G, G]
    await check_books(client)


async def test_no_pool_keeps_another_from_its_share_of_the_total(client, store):
    """The fast pool gives back and asks in one step; the other still gets half, and all when nobody else asks."""
    for pool in ("fast", "slow"):
        await obey(client, KEYS, pool, parameters())
    await limit(client, j=4)
    fast, slow = Asker(store, "fast"), Asker(store, "slow")
    await fast("f1", "f2", "f3", "f4")
    assert (await slow("s1")).verdicts == [R]
    assert (await fast("f5", give_back=["f1"])).verdicts == [R]
    assert (await slow("s1")).verdicts == [G]
    assert (await slow("s2")).verdicts == [R]
    assert (await fast("f6", give_back=["f2"])).verdicts == [R]
    assert (await slow("s2", "s3")).verdicts == [G, R]
    assert (await fast("f7", give_back=["f3"])).verdicts == [G]  # each has its half now
    slow.now_ms = fast.now_ms = fast.now_ms + 2000  # the slow pool asks no more
    assert (await fast("f8", "f9", give_back=["f4"])).verdicts == [G, R]
    await check_books(client)


async def test_a_job_that_does_not_run_makes_no_call(client, store):
    await limit(client, j=1)
    admission = await Asker(store)(Want("x", "cancelled", "p"), "a")
    assert admission.verdicts == [P, G]
    assert admission.open_in_all == 1


async def test_leases_end_at_their_deadline_and_not_before(client, store):
    await limit(client, j=1)
    ask = Asker(store)
    await ask("a", ttl_ms=10_000)
    ask.now_ms += 9_999
    assert (await ask("b")).verdicts == [R]
    ask.now_ms += 1
    assert (await ask("b")).verdicts == [G]
    await check_books(client)


async def test_a_lease_that_is_over_ends_though_nobody_asks(client, store, redis_url):
    await limit(client, j=1)
    await store.admit(pool="p", node="n", ttl_ms=0, give_back=[], wants=[Want("a", "j", "p")])
    Registry(connect(redis_url), KEYS).announce(Node.for_this_process("w@h", limit=1, slots=1))
    assert await client.zcard(KEYS.leases) == 0
    await check_books(client)


@pytest.mark.parametrize("jump_s", [3600, -3600])
async def test_a_jump_of_the_servers_clock_ends_no_lease(client, store, jump_s):
    """The clock's stored reading is moved the other way, which is what the scripts see of a jump."""
    await limit(client, j=1)
    await store.admit(pool="p", node="n", ttl_ms=60_000, give_back=[], wants=[Want("a", "j", "p")])
    before = int(await client.hget(KEYS.clock, "now"))
    await client.hincrby(KEYS.clock, "wall", -jump_s * 1000)
    again = await store.admit(pool="p", node="n", ttl_ms=60_000, give_back=[], wants=[Want("b", "j", "p")])
    assert again.verdicts == [R]
    assert 0 <= int(await client.hget(KEYS.clock, "now")) - before <= 5_100


async def test_a_freed_lease_is_told_to_those_who_wait(client, store):
    await limit(client, j=1)
    mine, other = Asker(store, node="n1"), Asker(store, node="n2")
    await mine("a")
    assert (await other("b")).verdicts == [R]
    async with client.pubsub(ignore_subscribe_messages=True) as ear:
        await ear.subscribe(KEYS.freed)
        await ear.get_message(timeout=1)
        await mine(give_back=["a"])
        message = await ear.get_message(timeout=5)
        assert message is not None
        assert message["data"] in ("p", "*")


async def test_bury_frees_the_leases_of_one_node_only(client, store, redis_url):
    await limit(client, j=4)
    dead = Node.for_this_process("w1@h", limit=4, slots=4)
    living = Node.for_this_process("w1@h", limit=4, slots=4)
    assert dead.id != living.id  # two workers of one name are two nodes
    registry = Registry(connect(redis_url), KEYS)
    registry.announce(dead)
    registry.announce(living)
    await Asker(store, node=dead.id)("a", "b")
    await Asker(store, node=living.id)("c")
    assert registry.deregister(dead) == 2
    assert await client.hgetall(KEYS.open) == {"all": "1", "p:p": "1", "j:j": "1", "o:p|proj": "1"}
    assert [n.id for n in registry.alive()] == [living.id]
    assert registry.deregister(dead) == 0
    await check_books(client)


async def test_whoever_ends_anothers_lease_tells_of_it(client, store, redis_url, caplog):
    """Bury, tick and the next who asks: one line for each lease, so that a count of acquired and released balances."""
    caplog.set_level("INFO")
    await limit(client, j=9)
    dead, other = Node.for_this_process("w1@h", limit=4, slots=4), Node.for_this_process("w2@h", limit=4, slots=4)
    registry = Registry(connect(redis_url), KEYS)
    await Asker(store, node=dead.id)("a", "b")
    await Asker(store, node=other.id)("c")
    registry.deregister(dead)
    registry.announce(other)  # by the real clock "c" is over since long
    late = Asker(store, node=other.id)
    await late("d")
    late.now_ms += TTL_MS
    await late("e")
    told = [(r.lease, r.pool, r.job, r.node, r.reason) for r in caplog.records if getattr(r, "event", "") == "released"]
    assert sorted(told[:2]) == [(lease, "p", "j", dead.id, "node_lost") for lease in ("a", "b")]
    assert told[2:] == [(lease, "p", "j", other.id, "expired") for lease in ("c", "d")]


async def test_many_askers_against_one_cap_get_exactly_the_cap(client, redis_url):
    """40 clients with connections of their own ask at once: 17 leases are granted, whoever gets them."""
    clients = [redis.asyncio.Redis.from_url(redis_url, decode_responses=True) for _ in range(40)]
    await limit(clients[0], j=17)
    start = asyncio.Event()

    async def ask(n):
        store = LeaseStore(clients[n], KEYS)
        await start.wait()
        verdicts = []
        for i in range(5):
            want = Want(f"{n}.{i}", "j", "p")
            answer = await store.admit(pool=f"p{n % 3}", node=f"n{n}", ttl_ms=TTL_MS, give_back=[], wants=[want])
            verdicts += answer.verdicts
        return verdicts

    asking = [asyncio.create_task(ask(n)) for n in range(40)]
    start.set()
    verdicts = [v for answer in await asyncio.gather(*asking) for v in answer]
    assert verdicts.count(G) == 17
    await check_books(clients[0])
    for c in clients:
        await c.aclose()


async def test_random_histories_never_exceed_a_limit(client, store):
    """At every step of 2,000 the open leases stay within all limits and the books balance at the end."""
    chance = random.Random(7)
    await limit(client, a=3, b=5)
    await obey(client, KEYS, "p1", parameters(2))
    askers = [Asker(store, pool, node) for pool in ("p1", "p2") for node in ("n1", "n2")]
    held: dict[str, tuple[str, str, int]] = {}
    now_ms, serial = 1_000_000, 0
    for _ in range(2000):
        now_ms += chance.choice([0, 1, 50, 2000])
        ask = chance.choice(askers)
        ask.now_ms = now_ms
        mine = [lease for lease, (pool, *_) in held.items() if pool == ask.pool]
        back = chance.sample(mine, k=min(len(mine), chance.randrange(3)))
        wants = []
        for _ in range(chance.randrange(4)):
            serial += 1
            wants.append(Want(f"l{serial}", chance.choice("ab"), "proj"))
        answer = await ask(*wants, give_back=back, ttl_ms=20_000)
        for lease in back:
            del held[lease]
        held = {lease: facts for lease, facts in held.items() if facts[2] > now_ms}
        for want, verdict in zip(wants, answer.verdicts, strict=True):
            if verdict is G:
                held[want.lease] = (ask.pool, want.job, now_ms + 20_000)
        assert sum(pool == "p1" for pool, *_ in held.values()) <= 2
        assert sum(job == "a" for _, job, _ in held.values()) <= 3
        assert len(held) <= 5
    assert set(held) == set(await client.zrange(KEYS.leases, 0, -1))
    await check_books(client)


OLD_RECORD = "p|j|a%20b|n|1700000000000|2|1|300|100|400|12|3600.5|1200|m"


async def test_leases_of_an_earlier_version_run_out(client, store, caplog):
    """Killed workers leave them behind; what they counted for is taken back."""
    await limit(client, j=1)
    await client.hset(KEYS.holders, "old", OLD_RECORD)
    await client.zadd(KEYS.leases, {"old": 1})
    await client.hset(KEYS.open, mapping={"all": 1, "p:p": 1, "j:j": 1, "o:p|a%20b": 1})
    caplog.set_level("INFO")
    assert (await Asker(store)("a")).verdicts == [G]
    await check_books(client)
    (line,) = [line for line in caplog.records if getattr(line, "event", "") == "released"]
    assert (line.lease, line.pool, line.job, line.node) == ("old", "p", "j", "n")


def test_a_record_of_an_earlier_version_is_read():
    assert read_holder(OLD_RECORD) == Holder("p", "j", "a b", "n", 1_700_000_000_000, probe=True)


async def test_to_a_node_that_has_an_order_nothing_is_granted(client, redis_url, store):
    """From the moment it stands, whether the node has read it or not; others are not concerned."""
    await limit(client, j=10)
    cordoned, other = Asker(store, node="n"), Asker(store, node="m")
    assert (await cordoned("a")).verdicts == [G]
    orders = Orders(connect(redis_url), KEYS)
    await client.hset(KEYS.nodes, "n", "{}")
    orders.give("n", OrderKind.CORDON, by="ann")
    refused = await cordoned("b", "c", give_back=["a"])
    assert (refused.verdicts, refused.reasons, refused.open_in_all) == ([R, R], ["cordoned"] * 2, 0)
    assert (await other("d")).verdicts == [G]
    orders.take_back("n")
    assert (await cordoned("e")).verdicts == [G]
    await check_books(client)


# ---------------------------------------------------------------------- calls that were cut
async def walk_to(asker, now_ms):
    """The lease clock takes steps of 5 s at most."""
    while asker.now_ms < now_ms:
        asker.now_ms = min(now_ms, asker.now_ms + 5000)
        await asker()


@pytest.mark.parametrize("further_s, freed_ms", [(0.0, TTL_MS), (20.0, TTL_MS), (90.0, 100_000)])
async def test_a_call_that_was_cut_counts_until_its_deadline_or_for_longer(client, store, further_s, freed_ms):
    await limit(client, j=2)
    ask = Asker(store)
    began_ms = ask.now_ms
    await ask("a", "b", cut_frees=False)
    await walk_to(ask, began_ms + 10_000)
    answer = await ask("c", give_back=[Returned("a", None, further_s), "b"])
    assert (answer.verdicts, answer.open_in_pool) == ([G], 2)
    assert (await ask("d", give_back=[Returned("a", None, further_s)])).verdicts == [R]  # told twice is told once
    assert (await ask("d", give_back=["c"])).verdicts == [G]
    await check_books(client)
    await walk_to(ask, began_ms + freed_ms - 1)
    assert (await ask("e")).verdicts == [R] or freed_ms > TTL_MS
    assert "a" in await client.hkeys(KEYS.holders)
    await walk_to(ask, began_ms + freed_ms)
    assert "a" not in await client.hkeys(KEYS.holders)
    await check_books(client)


async def test_how_a_cut_call_ended_is_told_once_and_is_no_refusal(client, store):
    await limit(client, j=9)
    ask = Asker(store)
    await ask("a", cut_frees=False)
    for _ in range(2):
        await ask(give_back=[Returned("a", CallOutcome(0, reporter="u", error="no answer"), 60.0)])
    counters = await client.hgetall(KEYS.counters("p"))
    assert float(counters["status:0"]) == 1
    assert not [name for name in counters if name.startswith("refused:")]
    events = [entry for _, fields in await client.xrange(KEYS.events("p")) for entry in json.loads(fields["events"])]
    assert [event[0] for event in events] == ["sent", "done"]


async def test_a_dead_nodes_calls_count_on_where_its_provider_goes_on_working(client, store, redis_url, caplog):
    """The proof that a process is gone is none that its provider has ended the calls."""
    caplog.set_level("INFO")
    await limit(client, j=9)
    dead, living = Node.for_this_process("w1@h", limit=4, slots=4), Node.for_this_process("w2@h", limit=4, slots=4)
    registry = Registry(connect(redis_url), KEYS)
    registry.announce(dead)
    await Asker(store, node=dead.id)("a", "b", cut_frees=False)
    await Asker(store, pool="wide", node=dead.id)("c")
    ask = Asker(store, node=living.id)
    assert registry.deregister(dead) == 1
    assert sorted(await client.hkeys(KEYS.holders)) == ["a", "b"]
    await check_books(client)
    shown = {lease.lease: lease.cut for lease in await open_leases(client, KEYS)}
    assert shown == {"a": True, "b": True}
    (line,) = [r for r in caplog.records if getattr(r, "event", "") == "cut_at_end"]
    assert (line.calls, line.node) == (2, dead.id)
    await walk_to(ask, ask.now_ms + TTL_MS)
    assert await client.hgetall(KEYS.holders) == {} == await client.hgetall(KEYS.open)


async def test_a_node_whose_calls_were_all_cut_is_not_busy(client, store, redis_url):
    await limit(client, j=9)
    node = Node.for_this_process("w1@h", limit=4, slots=4)
    registry = Registry(connect(redis_url), KEYS)
    registry.announce(node)
    await Asker(store, node=node.id)("a", cut_frees=False)
    orders = Orders(connect(redis_url), KEYS)
    assert orders.give(node.id, OrderKind.REMOVE, by="me", busy=False)[1] == 1
    await Asker(store, node=node.id)(give_back=[Returned("a", None, 0.0)])
    order, leases = orders.give(node.id, OrderKind.REMOVE, by="me", busy=False)
    assert (order is not None, leases) == (True, 0)


async def test_a_lease_tells_its_model(client, store):
    await limit(client, j=9)
    await Asker(store)(Want("a", "j", "proj", "gpt-x"))
    (lease,) = await open_leases(client, KEYS)
    assert (lease.model, lease.cut) == ("gpt-x", False)
