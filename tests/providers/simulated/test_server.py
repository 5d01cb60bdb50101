from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import aiohttp
import pytest

from lab.provider import Behaviour, ConfigError, SimulatedAccount, SimulatedConfig
from lab.provider.account import parse_step
from tests.providers.conftest import until

OPENAI_PATH = "/v1/chat/completions"
PROMPT = "END OF MATERIAL 0123456789abcdef\nSCALE: 1..10"


def config(**behaviour: Any) -> SimulatedConfig:
    return SimulatedConfig(behaviour=Behaviour().changed(behaviour))


async def post(http: aiohttp.ClientSession, sim: SimulatedAccount, path: str = OPENAI_PATH, **body: Any) -> int:
    asked = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": PROMPT}], **body}
    async with http.post(sim.base_url + path, json=asked) as response:
        await response.read()
        return response.status


async def burst(sim: SimulatedAccount, calls: int, **options: Any) -> list[int]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        return list(await asyncio.gather(*(post(http, sim, **options) for _ in range(calls))))


@contextlib.asynccontextmanager
async def calls(sim: SimulatedAccount, count: int, **options: Any) -> AsyncIterator[None]:
    """Within it, `count` calls have arrived; those that wait for an answer are given up at the end."""
    before = sim.stats()["calls"]
    task = asyncio.create_task(burst(sim, count, **options))
    await until(lambda: sim.stats()["calls"] == before + count)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def get(sim: SimulatedAccount, path: str) -> Any:
    async with aiohttp.ClientSession() as http, http.get(sim.base_url + path) as response:
        return await response.json()


@pytest.mark.parametrize("path", [OPENAI_PATH, "/v1/messages"])
async def test_the_cap_is_hard_and_what_was_seen_is_counted(path):
    async with SimulatedAccount(config(cap=5, latency=60)) as sim:
        async with calls(sim, 20, path=path):
            await until(lambda: sim.stats()["by_status"] == {"429": 15})
            stats = await get(sim, "/stats")
        await until(lambda: sim.stats()["open"] == 0)
        after = sim.stats()
    assert (stats["open"], stats["serving"], stats["max_serving"]) == (5, 5, 5)
    assert 5 <= stats["max_open"] <= 20
    assert (stats["calls"], stats["accepted"], stats["refusals"]) == (20, 5, {"cap": 15})
    assert (after["serving"], after["by_status"]) == (0, {"0": 5, "429": 15})


async def test_beyond_its_knee_a_server_takes_longer_in_proportion_and_refuses_nothing():
    async with SimulatedAccount(config(knee=2, latency=0.1)) as sim:
        await burst(sim, 6)
        took = [call["end"] - call["arrival"] for call in sim.log()]
    assert max(took) == pytest.approx(0.3, abs=0.08)
    assert min(took) < 0.5 * max(took)


async def test_the_share_of_capacity_used_is_an_integral():
    async with SimulatedAccount(config(cap=4, latency=0.2)) as sim:
        await burst(sim, 2)
        first, second = sim.log()
        used = first["end"] - first["arrival"] + second["end"] - second["arrival"]
        offered = 4 * (max(first["end"], second["end"]) - min(first["arrival"], second["arrival"]))
        assert sim.stats()["capacity_used"] == pytest.approx(used / offered)


async def test_openai_buckets_count_refused_calls_and_anthropics_do_not():
    async with SimulatedAccount(config(rpm=6, burst=30)) as sim:
        assert sorted(await burst(sim, 10)) == [200] * 3 + [429] * 7
        wait_openai = (await refused(sim, OPENAI_PATH))["retry-after-ms"]
    async with SimulatedAccount(config(rpm=6, burst=30)) as sim:
        assert sorted(await burst(sim, 10, path="/v1/messages")) == [200] * 3 + [429] * 7
        wait_anthropic = (await refused(sim, "/v1/messages"))["retry-after"]
    assert 10_000 < int(wait_openai) <= 13_000
    assert int(wait_anthropic) <= 10


async def refused(sim: SimulatedAccount, path: str) -> dict[str, str]:
    asked = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": PROMPT}]}
    async with aiohttp.ClientSession() as http, http.post(sim.base_url + path, json=asked) as response:
        assert response.status == 429
        return {name.lower(): value for name, value in response.headers.items()}


async def test_tokens_are_charged_as_each_provider_does():
    async with SimulatedAccount(config(tpm=60_000)) as sim:
        await burst(sim, 1, max_tokens=900)
        assert sim.stats()["tokens"]["charged"] == 900
        await burst(sim, 1, max_tokens=1, messages=[{"role": "user", "content": "x" * 4000}])
        assert sim.stats()["tokens"]["charged"] == 900 + 1000
    async with SimulatedAccount(config(tpm=60_000, output_tpm=60, burst=1)) as sim:
        assert await burst(sim, 1, path="/v1/messages") == [200]
        assert sim.stats()["tokens"]["charged"] < 50
        assert await burst(sim, 1, path="/v1/messages") == [429]
        assert sim.stats()["refusals"] == {"output_tpm": 1}


async def test_steps_change_the_cap_after_answers_and_after_seconds():
    steps = (parse_step("3:2"), parse_step("0.3s:cap=1"))
    async with SimulatedAccount(SimulatedConfig(behaviour=Behaviour(cap=10, latency=0.01), steps=steps)) as sim:
        assert sorted(await burst(sim, 3)) == [200] * 3
        assert (await get(sim, "/control"))[""]["cap"] == 2
        await until(lambda: sim.stats()["uptime_s"] > 0.31)
        assert (await get(sim, "/control"))[""]["cap"] == 1


async def test_models_have_limits_of_their_own():
    models = {"slow": Behaviour(cap=1, latency=60)}
    asked = SimulatedConfig(behaviour=Behaviour(cap=5), models=models)
    async with SimulatedAccount(asked) as sim, calls(sim, 3, model="slow"):
        assert await burst(sim, 5, model="fast") == [200] * 5
        await until(lambda: sim.stats()["by_status"] == {"200": 5, "429": 2})
        stats = sim.stats()
    assert stats["models"] == {"slow": {"open": 1, "max_open": stats["models"]["slow"]["max_open"], "max_serving": 1}}


async def test_open_calls_are_answered_when_one_says_so():
    async with SimulatedAccount(config(latency=60)) as sim, aiohttp.ClientSession() as http:
        asked = [asyncio.ensure_future(post(http, sim)) for _ in range(2)]
        await until(lambda: sim.stats()["open"] == 2)
        async with http.post(sim.base_url + "/control", json={"latency": 0.01, "answer": True}) as response:
            assert response.status == 200
        assert await asyncio.wait_for(asyncio.gather(*asked), 30) == [200, 200]
        assert await post(http, sim) == 200, "and what comes later waits as long as is said"
        assert sim.stats()["open"] == 0


async def test_behaviour_changes_while_it_runs():
    async with SimulatedAccount() as sim, aiohttp.ClientSession() as http:
        assert await post(http, sim) == 200
        async with http.post(sim.base_url + "/control", json={"cap": 0, "reset": True}) as response:
            assert await response.json() == {"ok": True}
        assert await post(http, sim) == 429
        assert sim.stats()["by_status"] == {"429": 1}
        async with http.post(sim.base_url + "/control", json={"model": "m", "exhausted": True}) as response:
            assert response.status == 200
        assert await post(http, sim) == 429
        assert sim.log()[-1]["reason"] == "exhausted"
        for wish in ({"capp": 1}, {"cap": "x"}, {"cap": -1}, [], {"faults": {"no": 1}}):
            async with http.post(sim.base_url + "/control", json=wish) as response:
                assert response.status == 400
        async with http.get(sim.base_url + "/nothing") as response:
            assert response.status == 404


async def test_every_request_is_in_the_log(tmp_path):
    path = tmp_path / "log.jsonl"
    asked = SimulatedConfig(behaviour=Behaviour(cap=1, latency=0.05), log_file=str(path), log_size=2)
    async with SimulatedAccount(asked) as sim:
        await burst(sim, 3)
        log = await get(sim, "/log")
        later = await get(sim, "/log?after=2")
    assert [entry["number"] for entry in log] == [2, 3], "the log in memory is bounded"
    assert [entry["number"] for entry in later] == [3]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(entry["number"] for entry in lines) == [1, 2, 3]
    served = next(entry for entry in lines if entry["accepted"])
    assert served["status"] == 200
    assert served["end"] - served["arrival"] >= 0.05
    assert served["nonce"] == "0123456789abcdef"
    assert served["output_tokens"] > 0


async def test_callers_that_hang_up_are_no_longer_open():
    async with SimulatedAccount(config(latency=60)) as sim:
        async with calls(sim, 5):
            assert sim.stats()["open"] == 5
        await until(lambda: sim.stats()["open"] == 0)
        assert sim.stats()["by_status"] == {"0": 5}


async def test_shares_are_kept_and_follow_the_seed():
    async def counts() -> dict[str, int]:
        async with SimulatedAccount(config(noise_429=0.1, fail_5xx=0.1, overload_529=0.1)) as sim:
            async with aiohttp.ClientSession() as http:
                for _ in range(300):
                    await post(http, sim)
            return sim.stats()["by_status"]

    first = await counts()
    assert first == await counts()
    assert 15 <= first["429"] <= 45
    assert 15 <= first["529"] <= 45
    assert 15 <= sum(first.get(status, 0) for status in ("500", "502", "503", "504")) <= 45


def test_latency_has_the_mean_that_was_asked_for():
    random = Random(1)
    exact, spread = Behaviour(latency=0.2), Behaviour(latency=0.2, sigma=0.5)
    assert exact.draw_latency_s(random) == 0.2
    drawn = [spread.draw_latency_s(random) for _ in range(10_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.2, rel=0.03)
    assert max(drawn) > 5 * min(drawn)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": "x"},
        {"messages": [{"content": 7}]},
        {"model": ""},
        {"max_tokens": 0},
        {"max_tokens": "x"},
        {"response_format": {"type": "json_schema"}},
        {"response_format": "x"},
    ],
    ids=str,
)
async def test_bad_requests_are_refused(body):
    async with SimulatedAccount() as sim:
        assert await burst(sim, 1, **body) == [400]


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2015 07:28:00 GMT", "-3", "1e400", "soon"])
async def test_retry_after_can_be_anything(value):
    async with SimulatedAccount(config(cap=0, retry_after_value=value)) as sim:
        assert (await refused(sim, OPENAI_PATH))["retry-after"] == value


def test_options_are_checked():
    for wish in ({"cap": 1.5}, {"cap": True}, {"latency": -1}, {"noise_429": 1.1}, {"headers": 1}, {"rpm": 0}):
        with pytest.raises(ConfigError):
            Behaviour().changed(wish)
    with pytest.raises(ConfigError, match="did you mean 'latency'"):
        Behaviour().changed({"latncy": 1})


async def test_a_deaf_provider_goes_on_with_calls_that_were_given_up_and_counts_them_as_open():
    async with SimulatedAccount(config(latency=0.3, sigma=0.0, deaf=True, cap=3)) as sim:
        async with calls(sim, 3):
            assert sim.stats()["open"] == 3
        stats = await get(sim, "/stats")  # the callers have hung up
        assert (stats["open"], stats["serving"], stats["by_status"]) == (3, 3, {})
        assert await burst(sim, 1) == [429]
        await until(lambda: sim.stats()["open"] == 0)
        assert sim.stats()["by_status"] == {"200": 3, "429": 1}


async def test_a_deaf_provider_ends_with_calls_open():
    async with SimulatedAccount(config(latency=60, deaf=True)) as sim:
        async with calls(sim, 2):
            pass
        assert sim.stats()["open"] == 2
    assert sim.stats()["open"] == 0
