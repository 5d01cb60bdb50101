"""Jobs whose agents name several deployments: what is taken, and what is refused before anything is stored."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dicast.app.application import create_app
from dicast.app.domain.refusals import InvalidJob, JobRefused
from dicast.app.ledger.keys import LedgerKeys
from dicast.config.pools import UnknownPool

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
[pools.plain]
provider = "simulated"
structured_output = false
[pools.small]
provider = "local"
[pools.openai]
provider = "openai"
model = "gpt-4.1-mini"
[pools.tuned]
provider = "simulated"
effort = "low"
params = ["top_p", "stop", "reasoning", "reasoning_effort"]
param_names = { seed = "", temperature = "heat" }
[pools.router]
provider = "simulated"
params = ["reasoning"]
param_names = { effort = "reasoning.effort" }
[pools.priced]
provider = "simulated"
price = { input = 1, output = 2 }
[pools.twice]
provider = "simulated"
price = { input = 1, output = 2, priority = 2 }
[pools.faster]
provider = "simulated"
price = { input = 1, output = 2 }
service_tier = "priority"
[pools.eu]
provider = "simulated"
labels = { region = "eu", disk = "ssd" }
[pools.shared]
provider = "simulated"
limits_by_model = ["small", "meta/large"]
price = { small = { input = 1, output = 1 }, "meta/large" = { input = 2, output = 2 } }
budget = { day = 5 }
[pools.gateway]
provider = "openai"
base_url = "http://127.0.0.1:1/v1"
model = "openai/gpt-4.1"
"""


@pytest.fixture
def app(environ):
    Path(environ["DICAST_POOLS_FILE"]).write_text(POOLS)
    app = create_app(environ)
    yield app
    app.close()


def a_job(*agents, **more):
    return {
        "items": [{"id": "i", "text": "a text"}],
        "agents": [{"name": f"a{n}", **agent} for n, agent in enumerate(agents)],
        "dimensions": [{"id": "d", "instructions": "?"}],
        **more,
    }


def test_agents_of_the_same_choice_share_a_lane_and_batch_only_where_all_can(app):
    both = {"deployments": [{"pool": ""}, {"pool": "plain", "model": "m"}]}
    two_models = {"deployments": [{"model": "m"}, {"model": "n"}]}
    job_id = app.submit(a_job(both, {}, both, two_models, batching=True))
    lanes = orjson.loads(app.store.hget(LedgerKeys(app.keys).job(job_id), "lanes"))
    assert [(lane["pools"], lane["agents"], lane["batched"]) for lane in lanes] == [
        (["sim", "plain"], [0, 2], False), (["sim"], [1], True), (["sim", "sim"], [3], True),
    ]  # fmt: skip


def test_models_with_limits_of_their_own_have_lanes_apart_and_one_purse(app):
    small, large = {"pool": "shared", "model": "small"}, {"pool": "shared", "model": "meta/large"}
    by_name, either = {"pool": "shared:small"}, {"deployments": [small, large]}
    job_id = app.submit(a_job(small, large, by_name, either))
    record = app.store.hgetall(LedgerKeys(app.keys).job(job_id))
    assert [(lane["pools"], lane["agents"]) for lane in orjson.loads(record["lanes"])] == [
        (["shared:small"], [0, 2]), (["shared:meta-large"], [1]), (["shared:small", "shared:meta-large"], [3]),
    ]  # fmt: skip
    places = [[(place["pool"], place["model"]) for place in of_agent] for of_agent in orjson.loads(record["places"])]
    of_small, of_large = ("shared", "small"), ("shared", "meta/large")
    assert places == [[of_small], [of_large], [of_small], [of_small, of_large]]
    purses = {purses for name, purses in record.items() if name.startswith("purses:")}
    assert len(purses) == 1 and purses.pop().endswith("pool:shared:USD")


@pytest.mark.parametrize(
    "agent, error, complaint",
    [
        ({"pool": "sim", "deployments": [{}]}, InvalidJob, "pool must be named in deployments, or without them"),
        ({"model": "m", "deployments": [{}]}, InvalidJob, "model must be named in deployments, or without them"),
        ({"deployments": [{"pol": "sim"}]}, InvalidJob, "pol"),
        ({"deployments": [{}] * 17}, InvalidJob, "agents[0].deployments: may hold at most 16, got 17"),
        ({"deployments": [{}, {"pool": "sin"}]}, UnknownPool, "there is no pool 'sin'; did you mean 'sim'?"),
        (
            {"deployments": [{}, {"pool": "sim", "model": "simulated-judge"}]},
            JobRefused,
            "agents: 'a0' names model 'simulated-judge' of pool 'sim' twice",
        ),
        (
            {"model": "openai/gpt-4o"},
            JobRefused,
            "agents: 'a0' names model 'openai/gpt-4o' and no pool, and the default pool 'sim' does not serve openai's "
            "models; name its pool: openai, gateway",
        ),
        ({"deployments": [{}, {"model": "anthropic/claude"}]}, JobRefused, "does not serve anthropic's models"),
        (
            {"pool": "small", "model": "openai/gpt-4o"},
            JobRefused,
            "agents: 'a0' names model 'openai/gpt-4o', and pool 'small' serves 'SmolLM2-135M-Instruct' alone; did you "
            "mean pool 'openai' or 'gateway'?",
        ),
        (
            {"deployments": [{"pool": "shared", "model": "small"}, {"pool": "shared:small"}]},
            JobRefused,
            "agents: 'a0' names model 'small' of pool 'shared:small' twice",
        ),
        ({"pool": "shared:small", "model": "m"}, JobRefused, "pool 'shared:small' serves 'small' alone"),
        ({"pool": "small", "model": "gpt-4o"}, JobRefused, "pool 'small' serves 'SmolLM2-135M-Instruct' alone"),
        (
            {"pool": "tuned", "params": {"top_p": 1, "topp": 0.5}},
            JobRefused,
            "agents: 'a0': params.topp: pool 'tuned' allows top_p, stop, reasoning, reasoning_effort (`params` in the "
            "pools file), got 0.5",
        ),
        (
            {"deployments": [{"pool": "tuned"}, {"pool": "sim"}], "params": {"top_p": 1}},
            JobRefused,
            "agents: 'a0': params.top_p: pool 'sim' allows none (`params` in the pools file), got 1",
        ),
        (
            {"pool": "tuned", "seed": 7},
            JobRefused,
            "agents: 'a0': seed: pool 'tuned' has no such parameter (`param_names` in the pools file), got 7",
        ),
        (
            {"pool": "tuned", "params": {"reasoning_effort": "high"}},
            JobRefused,
            "agents: 'a0': params.reasoning_effort: pool 'tuned' sends it as reasoning_effort, and effort as "
            "reasoning_effort: one must be left out, got 'high'",
        ),
        (
            {"pool": "router", "effort": "low", "params": {"reasoning": {"max_tokens": 5}}},
            JobRefused,
            "agents: 'a0': params.reasoning: pool 'router' sends it as reasoning, and effort as reasoning.effort: one "
            "must be left out, got {'max_tokens': 5}",
        ),
        (
            {"pool": "tuned", "params": {"temperature": 1}},
            JobRefused,
            "agents: 'a0': params.temperature: belongs beside params, as the judge's temperature, got 1",
        ),
    ],
)
def test_mistakes_are_refused_with_field_and_value(app, agent, error, complaint):
    with pytest.raises(error) as caught:
        app.submit(a_job(agent))
    assert complaint in str(caught.value)
    assert list(app.ledger.jobs()) == []


@pytest.mark.parametrize(
    "agent",
    [
        {"pool": "small", "model": "SmolLM2-135M-Instruct"},
        {"pool": "gateway", "model": "anthropic/claude"},
        {"pool": "openai", "model": "ft:gpt-4.1/x"},
        {"model": "org/model"},
        {"model": "gpt-4o"},
        {"pool": "tuned", "temperature": 1, "effort": "high", "params": {"top_p": 1, "reasoning": {"max_tokens": 5}}},
        {"pool": "router", "params": {"reasoning": {"max_tokens": 5}}},
    ],
)
def test_models_and_parameters_that_their_pool_may_have_are_taken(app, agent):
    assert app.submit(a_job(agent))


def test_a_kind_of_service_is_asked_for_once(app):
    """`flex` is one, which would take the place of the judge's."""
    flex = {"name": "a0", "pool": "openai", "service_tier": "priority"}
    with pytest.raises(JobRefused, match=r"'a0': service_tier: must be left out where the road is flex.*'priority'"):
        app.submit(a_job(flex, road="flex"))
    assert app.submit(a_job(flex)) and app.submit(a_job({"pool": "openai"}, road="flex"))


def test_a_better_service_is_unpriced_until_its_price_is_told(app):
    priced = {name: [place.price is not None for place in app.prepared(a_job(agent)).places[0]] for name, agent in {
        "usual": {"pool": "priced"}, "untold": {"pool": "priced", "service_tier": "priority"},
        "told": {"pool": "twice", "service_tier": "priority"}, "of the pool": {"pool": "faster"},
    }.items()}  # fmt: skip
    assert priced == {"usual": [True], "untold": [False], "told": [True], "of the pool": [False]}
    with pytest.raises(JobRefused, match=r"max_cost.*pool '?faster"):
        app.prepared(a_job({"pool": "faster"}, max_cost="1"))


def test_a_job_whose_time_is_over_before_it_begins_is_refused(app):
    late = a_job({}, id="late", finish_by="2020-01-01T00:00:00Z")
    with pytest.raises(JobRefused, match=r"finish_by: 2020-01-01T00:00:00.000Z has passed"):
        app.submit(late)
    assert app.submit(a_job({}, finish_by="2999-01-01T00:00:00Z")) and app.submit(a_job({}, finish_by="10m"))


def test_a_job_that_demands_labels_goes_only_to_pools_that_do(app):
    ready = app.prepared(a_job({"pool": "eu"}, labels={"region": "eu"}))
    assert ready.job.labels == {"region": "eu"}
    with pytest.raises(JobRefused) as refused:
        app.prepared(a_job({"pool": "eu"}, {"pool": "sim"}, labels={"region": "eu"}))
    assert str(refused.value) == (
        "labels: the job demands region=eu, and pool 'sim' of agent 'a1' does not; these do: eu"
    )
    with pytest.raises(
        JobRefused, match=r"the job demands region=us, .* no pool does; give one labels in the pools file"
    ):
        app.prepared(a_job({"pool": "eu"}, labels={"region": "us"}))
    with pytest.raises(InvalidJob, match="labels"):
        app.prepared(a_job({"pool": "eu"}, labels={"region": "e u"}))


def test_an_item_may_hold_as_much_text_as_the_bound_says(environ):
    app = create_app({**environ, "DICAST_MAX_TEXT_BYTES": "1000"})
    try:
        fits, over = ({"id": "i", "text": "x" * size} for size in (1000, 1001))
        assert app.prepared({**a_job({}), "items": [fits]}).job.items[0].text_bytes == 1000
        with pytest.raises(JobRefused, match="'i' holds 1001 bytes of text, at most 1000"):
            app.prepared({**a_job({}), "items": [over]})
    finally:
        app.close()
