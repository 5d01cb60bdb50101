"""Which road a job's units take, and why one is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from dicast.app.domain.price import price_from_table
from dicast.app.domain.refusals import JobRefused
from dicast.app.submission.submit import prepare
from dicast.config.pools import Pools, PoolsError
from dicast.config.settings import Settings

POOLS = """
default = "openai"
[pools.openai]
provider = "openai"
model = "m"
[pools.cheap]
provider = "openai"
model = "m"
road = "batch"
[pools.claude]
provider = "anthropic"
model = "c"
[pools.ollama]
provider = "openai"
model = "o"
base_url = "http://localhost:11434/v1"
[pools.local]
provider = "local"
"""


def roads(*pools: str, **more: Any) -> list[tuple[tuple[str, ...], str]]:
    job = {
        "items": [{"id": "a", "text": "t"}],
        "agents": [{"name": f"j{n}", "pool": pool} for n, pool in enumerate(pools)],
        "dimensions": [{"id": "d", "instructions": "Good?"}],
        **more,
    }
    prepared = prepare(job, pools=Pools.parse(POOLS), settings=Settings())
    return [(lane.pools, lane.road) for lane in prepared.lanes]


def test_the_job_decides_or_else_the_pool() -> None:
    assert roads("openai", "cheap") == [(("openai",), "online"), (("cheap",), "batch")]
    assert roads("openai", "claude", road="batch") == [(("openai",), "batch"), (("claude",), "batch")]
    assert roads("cheap", road="online") == [(("cheap",), "online")]
    assert roads("openai", road="flex") == [(("openai",), "flex")]


def test_auto_is_online_where_there_are_no_batches_to_choose() -> None:
    assert roads("openai", "local", road="auto") == [(("openai",), "auto"), (("local",), "online")]
    agents = [{"name": "j", "deployments": [{"pool": "openai"}, {"pool": "claude"}]}]
    assert roads(road="auto", agents=agents) == [(("openai", "claude"), "online")]


@pytest.mark.parametrize(
    "pool, road, why",
    [
        ("ollama", "batch", r"road: 'batch' .* pool 'ollama' of agent 'j0' has none .*at a base_url.*say `online`"),
        ("local", "batch", r"pool 'local' of agent 'j0' has none \(provider 'local'\)"),
        ("claude", "flex", r"road: 'flex' is a service of OpenAI's, and pool 'claude' of agent 'j0' has none"),
    ],
)
def test_a_road_that_does_not_lead_to_the_pool_is_refused(pool: str, road: str, why: str) -> None:
    with pytest.raises(JobRefused, match=why):
        roads(pool, road=road)


def test_a_batch_goes_to_one_pool() -> None:
    agents = [{"name": "j", "deployments": [{"pool": "openai"}, {"pool": "claude"}]}]
    with pytest.raises(JobRefused, match="a batch goes to one pool, and agent 'j' has 2 deployments"):
        roads(road="batch", agents=agents)


@pytest.mark.parametrize("road, what", [("batch", "batch API"), ("auto", "batch API"), ("flex", "flex service")])
def test_a_pool_without_the_road_is_a_mistake_in_the_file(road: str, what: str) -> None:
    with pytest.raises(PoolsError, match=f"pool 'p': road must be 'online': its provider has no {what}, got '{road}'"):
        Pools.parse(f'[pools.p]\nprovider = "local"\nroad = "{road}"')


def test_what_a_kind_of_service_costs_is_rounded_up_and_never_guessed() -> None:
    price = price_from_table({"input": 0.000003, "output": 8, "batch": 0.5}, "here")
    half = price.of_service(price.batch)
    assert (half.rates.input, half.rates.output) == (2, 4_000_000)
    assert price.rates.input == 3
    assert price.of_service(price.flex) is price
    assert price.of_service(Decimal(1)).rates == price.rates
