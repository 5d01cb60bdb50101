"""Several stores: the scripts' keys allow it, and which ones do not is known."""

from __future__ import annotations

import inspect

import orjson
import pytest
from redis.crc import key_slot

from dicast.app.access.keys import AccessKeys
from dicast.app.ledger.keys import LedgerKeys, PageRef
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Want
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.store.connection import connect_async
from dicast.workers.store.keys import Keys
from lab.bench.admission import parameters
from lab.scale.__main__ import main
from lab.scale.bearing import one_store, sharded
from lab.scale.groups import HOME_OF, Home, ScriptKeys, keys_of_scripts, scripts
from lab.scale.needs import BUSY_MOST, CallCost, needs, slot_used
from lab.scale.page import PAGE, PARTS, measured, table, written
from lab.scale.shards import Shard, ShardKeys, Shards
from tests.workers.test_scripts import told_in_header

NOT_IN_SCRIPTS = {"generations", "audit_key", "master_mark", "signing_key", "continuations"}


def test_every_script_is_read_with_all_keys_that_its_header_tells() -> None:
    found = {script.script: script for script in keys_of_scripts()}
    assert set(found) == {path.stem for path in scripts()}
    for path in scripts():
        named, more = told_in_header(path, "KEYS")
        assert len(found[path.stem].given) == named + more, path.name


def test_the_scripts_that_keep_jobs_and_pools_together_are_these() -> None:
    crossing = {script.script: script.group for script in keys_of_scripts() if script.crosses}
    assert crossing == {
        "start": "job + pool",
        "cancel": "job + pool",
        "complete": "job + pool",
        "find_lost": "job + messages",
    }


def test_a_key_of_another_group_is_noticed() -> None:
    assert not ScriptKeys("claim", ("job", "page", "clock"), ("node",)).crosses
    assert ScriptKeys("claim", ("job", "page", "clock", "leases"), ("node",)).homes == {Home.JOB, Home.POOL}


@pytest.mark.parametrize("kind", [Keys, LedgerKeys, AccessKeys])
def test_every_key_has_a_home(kind: type) -> None:
    made = {name for name, member in inspect.getmembers(kind) if name[0] != "_" and _makes_a_key(member)}
    assert made - set(HOME_OF) - NOT_IN_SCRIPTS == set()


def _makes_a_key(member: object) -> bool:
    function = member.fget if isinstance(member, property) else member
    return inspect.isfunction(function) and function.__name__ != "at"


def test_one_tag_holds_all_of_a_shard_and_nothing_of_another() -> None:
    one, other = ShardKeys("a/b", "1"), ShardKeys("a/b", "2")
    assert one.job_limits == "{a%2Fb/1}:job_limits" != other.job_limits
    assert LedgerKeys(one).job("j").startswith(one.at())
    assert Keys("a/b").job_limits == "{a%2Fb}:job_limits"


def test_todays_keys_lie_in_one_slot_of_a_cluster_and_the_queues_elsewhere() -> None:
    keys, ref = Keys("dicast"), PageRef("j", "i", 0, 0)
    ours = [keys.clock, keys.governor("p"), keys.unacked("n"), LedgerKeys(keys).page(ref), AccessKeys("dicast").tokens]
    assert len({key_slot(key.encode()) for key in ours}) == 1
    assert key_slot(f"{QUEUE_PREFIX}p".encode()) != key_slot(keys.unacked("n").encode())


async def test_each_of_two_shards_allows_a_job_its_whole_limit(redis_url: str) -> None:
    """What stands in the way of jobs whose pools are on several shards: a limit counts where it was told, so each
    shard is to be told a part."""
    client = connect_async(redis_url)

    async def asked(shard: str, limit: int) -> LeaseVerdict:
        keys = ShardKeys("s", shard)
        await client.hset(keys.epoch, "number", 1)
        await client.hset(keys.governor("p"), mapping={"parameters": orjson.dumps(parameters(10)), "version": 1})
        await client.hset(keys.job_limits, mapping={"j": limit, "another": 10})
        want = Want(f"lease {limit} on {shard}", "j", "team")
        answer = await LeaseStore(client, keys).admit(pool="p", node="n", ttl_ms=1000, give_back=[], wants=[want])
        return answer.verdicts[0]

    assert [await asked(shard, 1) for shard in ("2", "3")] == [LeaseVerdict.GRANTED, LeaseVerdict.GRANTED]
    assert [await asked(shard, limit) for shard, limit in (("4", 1), ("5", 0))] == [
        LeaseVerdict.GRANTED,
        LeaseVerdict.DENIED,
    ]
    await client.aclose()


def test_a_third_shard_takes_only_its_own_part() -> None:
    three = [Shard(str(n), ShardKeys("s", str(n))) for n in range(3)]
    names = [f"pool-{n}" for n in range(300)]
    moved = [name for name in names if Shards(three[:2]).of(name) is not Shards(three).of(name)]
    assert {Shards(three).of(name).url for name in moved} == {"2"}
    assert 60 <= len(moved) <= 140


@pytest.mark.parametrize("clustered", [False, True], ids=["two stores", "a cluster of two"])
def test_two_stores_share_pools_and_jobs(clustered: bool) -> None:
    """Each job's ledger is on another one than its pool; a cluster's nodes refuse what is not theirs."""
    found = sharded(2, 40, connections=4, clustered=clustered)
    assert found.misplaced == 0
    assert min(found.keys) > 5
    assert sorted(found.shard_of.values()) == [0, 0, 1, 1]
    assert min(found.rate.store_us) > 0


def test_what_a_store_bears_is_its_own_time() -> None:
    rates = {rate.operation: rate for rate in one_store(80, (2,), over_tcp=True)}
    assert set(rates) == {
        "command",
        "grant",
        "grant, 8 a step",
        "claim",
        "record",
        "record, 8 a step",
        "grant, 80 more calls open",
    }
    assert all(rate.borne_per_s == 1e6 / max(rate.store_us) > 0 for rate in rates.values())


def test_what_calls_need_is_their_cpu_time() -> None:
    cost = CallCost(store_ms=0.3, worker_ms=3.0, called_bytes=2000)
    few, many = needs(100, 2.0, cost, 0.5), needs(4000, 2.0, cost, 0.5)
    assert (few.open_calls, few.stores, few.workers, few.open_each) == (200, 1, 1, 200)
    assert (many.open_calls, many.stores, many.workers, many.open_each) == (8000, 3, 24, 334)
    assert many.store_mb == pytest.approx(8000 * 2000 / 3 / 1e6)


@pytest.mark.parametrize(("calls", "seconds", "busy"), [(0, 2, 0.5), (10, -1, 0.5), (10, 2, 1.1), (10, 2, 0)])
def test_what_cannot_be_reckoned_is_refused(calls: float, seconds: float, busy: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        needs(calls, seconds, measured(), busy)


def test_a_slot_is_empty_for_each_round_trip() -> None:
    assert slot_used(1.0, 0.0, 0.0, 2) == 1.0
    assert slot_used(1.0, 0.05, 0.1, 2) == pytest.approx(0.8)


def test_the_command_reckons_by_what_was_measured(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["scale", "--calls", "5000", "--seconds", "3"])
    assert main() == 0
    said = capsys.readouterr().out
    told = needs(5000, 3.0, measured(), BUSY_MOST)
    assert f"stores: {told.stores}" in said
    assert f"workers: {told.workers}" in said


def test_the_page_has_a_place_for_each_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    made = table(["a", "b"], [["one", 1]])
    page = written(written(text, dict.fromkeys(PARTS, made)), {"store": made})
    assert page.count("| one | 1 |") == len(PARTS)
    assert page.count("<!-- end -->") == text.count("<!-- end -->") == len(PARTS)
    with pytest.raises(ValueError, match="'nothing'"):
        written(text, {"nothing": made})


def test_the_page_tells_what_the_keys_are_now() -> None:
    assert PARTS["keys"]() in PAGE.read_text(encoding="utf-8"), "run python -m lab.scale keys --docs"
