"""What operators are told of a pool, and when."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from dicast.app.cli.governor import pool_blocks, summary_line
from dicast.app.operator.pools import summary
from dicast.workers.admission.pool_state import Knee, ModelHealth, Outage, PoolState, ProjectState, findings, health_now

CALM = PoolState(
    pool="p", profile="adaptive", limit=8, effective_limit=8, ceiling=16, floor=2, open=4,
    projects={"a": ProjectState(4, False, 100.0)}, granted=100, refused={}, statuses={200: 90}, breaker="closed",
    breaker_for_s=0.0, breaks=5, budgets={}, decided_s_ago=0.5, reason="room", changes=[], override={}, zombies=0,
    silent={}, health={}, input_tokens=0, output_tokens=0, slo=None, job_limit=50, now=1000.0,
    assigned=0, reopened=0,
)  # fmt: skip
WAITING = {"a": ProjectState(2, True, 100.0)}


@pytest.mark.parametrize(
    "open_calls, assigned, load", [(0, 0, 0.0), (4, 0, 0.5), (8, 0, 1.0), (9, 0, 1.0), (4, 90, 1.0)]
)
def test_the_load_lies_between_0_and_1(open_calls, assigned, load):
    assert replace(CALM, open=open_calls, assigned=assigned).load == load


ENGINE = {
    "latency": {
        "knee": 34.2, "base": 1.04, "target": {"target_s": None, "most": None},
        "curve": {
            "16": {"open": 36.0, "per_s": 30.9, "latency_s": 1.16, "at": 990.0},
            "9": {"open": 8.0, "per_s": 7.9, "latency_s": 1.01, "at": 400.0},
        },
    }
}  # fmt: skip


@pytest.mark.parametrize(
    "changes, level, said",
    [
        ({}, 34, "at most 34 calls: more only wait for each other, for a call takes 1.04 s without load"),
        ({"target": {"target_s": 2, "most": 12.9}}, 12, "at most 12 calls: more would miss the latency target of 2 s"),
        ({"target": {"target_s": 2.0, "most": 99.0}}, 34, "at most 34 calls: more only wait for each other"),
        ({"knee": None}, None, "no knee was found: latency bounds nothing"),
    ],
)
def test_the_knee_is_told_with_its_curve_and_the_reason(changes, level, said):
    knee = Knee.from_engine({"latency": ENGINE["latency"] | changes})
    assert knee.level == level and knee.summary.startswith(said)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(pool_blocks([replace(CALM, knee=knee)], [], {}, whole=True))
    shown = console.export_text()
    assert said in " ".join(shown.split())
    rows = [" ".join(line.split()) for line in shown.splitlines() if "answers a second" in line]
    assert rows == [
        "8 open 7.9 answers a second 1.01 s each, 10 min ago",
        "36 open 30.9 answers a second 1.16 s each, 10 s ago",
    ]


@pytest.mark.parametrize("engine", [{}, {"latency": {}}, {"latency": {"knee": None, "base": 1.0, "cohorts": []}}])
def test_an_engine_that_has_learned_nothing_tells_nothing(engine):
    assert Knee.from_engine(engine) is None


def test_a_calm_pool_has_no_findings():
    assert findings(CALM) == []


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"limit": 2, "effective_limit": 2, "open": 2, "projects": WAITING}, "pinned at its floor of 2"),
        ({"breaker": "open", "breaker_for_s": 12.4, "breaks": 1}, "the circuit breaker is open, for 12 s more"),
        ({"breaker": "half_open", "reopened": 2}, "flaps: 3 breaks in 10 minutes"),
        ({"breaker": "half_open"}, "the circuit breaker is half open: one call tries the provider, all others wait"),
        ({"breaker": "open", "open": 0, "projects": WAITING}, "the circuit breaker is half open: one call tries"),
        ({"changes": [{"at": at, "cause": "recovered"} for at in (990, 600, 410)]}, "flaps: 3 breaks"),
        ({"decided_s_ago": 30.0}, "no decision for 30 s"),
        ({"open": 9}, "9 calls are open over a limit of 8: they finish, none is added"),
        ({"unknown_headers": ["x-quota-left"]}, "not understood: x-quota-left"),
        ({"zombies": 3, "zombies_for_s": 88.0}, "3 leases belong to nodes that cannot be heard; they end within 88 s"),
        (
            {"open": 8, "cut": 8, "cut_for_s": 118.0, "projects": WAITING},
            "it stands still: of its 8 open calls 8 were cut, and count for up to 118 s more, since the provider may "
            "still be working on them (if it ends a call when its connection is closed, cut_frees = true in",
        ),
        (
            {"open": 9, "cut": 5, "cut_for_s": 20.0, "zombies": 2, "zombies_for_s": 400.0, "projects": WAITING},
            "no slot is free: of its 9 open calls 5 were cut, and count for up to 20 s more, since",
        ),
        (
            {"open": 8, "zombies": 8, "zombies_for_s": 400.0, "projects": WAITING},
            "it stands still: of its 8 open calls 8 are of nodes that cannot be heard, and count for up to 7 min more",
        ),
        ({"silent": {"b": 42.0}}, "stale demand: these wanted more calls and stopped asking: b (42 s)"),
        (
            {"health": {"m": ModelHealth(90.0, 100.0, 9.0, alone=4.7), "n": ModelHealth(100.0, 100.0, 9.0)}},
            "refused lately are of m, one of 2 models: if the provider limits it apart, limits_by_model in the pools",
        ),
    ],
)
def test_each_trouble_is_told(changes, said):
    assert any(said in finding for finding in findings(replace(CALM, **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"limit": 2, "effective_limit": 2, "open": 2},  # at the floor, and nobody wants more
        {"limit": 2, "effective_limit": 2, "open": 2, "floor": 2, "ceiling": 2, "projects": WAITING},  # no choice
        {"decided_s_ago": 3600.0, "open": 0, "projects": {}},  # idle
        {"breaker": "open", "open": 0, "projects": {}},  # its break is over, and the next call will be the probe
        {"breaker": "half_open", "open": 0, "projects": {}},
        {"silent": {"b": 42.0}, "job_limit": 0},  # its job has ended
        {"open": 8, "cut": 8, "cut_for_s": 118.0},  # nobody waits
        {"open": 7, "cut": 7, "cut_for_s": 118.0, "projects": WAITING},  # a slot is free
        {"changes": [{"at": at, "cause": "recovered"} for at in (990, 600, 390, 10)]},  # some are long ago
        {"health": {"m": ModelHealth(90.0, 100.0, 9.0, alone=4.5), "n": ModelHealth(100.0, 100.0, 9.0)}},  # chance
        {"health": {"m": ModelHealth(90.0, 100.0, 9.0, alone=9.0)}},  # the other models are no longer used
    ],
)
def test_what_is_no_trouble_is_not_told(changes):
    assert findings(replace(CALM, **changes)) == []


def test_that_one_model_is_refused_alone_fades():
    remembered = {"good": 0.0, "all": 10.0, "at": 1000.0, "alone": 8.0, "alone_at": 1000.0}
    assert health_now(remembered, 1000.0).alone == 8.0
    assert health_now(remembered, 1600.0).alone == pytest.approx(8.0 / math.e)


def test_health_fades_into_not_knowing():
    remembered = {"good": 0.0, "all": 10.0, "at": 1000.0}
    assert health_now(remembered, 1000.0) == ModelHealth(0.0, 10.0)
    rates = [health_now(remembered, 1000.0 + age).success_rate for age in (0, 60, 300, 3600)]
    assert rates == sorted(rates)
    assert (round(rates[0], 2), round(rates[-1], 2)) == (0.09, 1.0)


def test_the_error_rate_counts_all_models():
    assert CALM.error_rate == 0.0
    assert replace(CALM, health={"m": ModelHealth(6.0, 8.0), "n": ModelHealth(2.0, 2.0)}).error_rate == pytest.approx(
        0.2
    )


@pytest.mark.parametrize(
    "changes, availability",
    [
        ({}, "ready"),
        ({"open": 8}, "busy"),
        ({"assigned": 4}, "busy"),
        ({"breaker": "open"}, "offline"),
        ({"breaker": "half_open"}, "offline"),
        ({"outage": Outage(0.0, 1.0, 3, 1, 500, "")}, "offline"),
        ({"outage": Outage(0.0, 1.0, 2, 1, 500, "")}, "ready"),
    ],
)
def test_what_a_unit_would_meet(changes, availability):
    assert replace(CALM, **changes).availability == availability


def test_the_mean_latency_of_a_pool_is_over_all_its_good_calls():
    models = {"m": ModelHealth(6.0, 8.0, 12.0), "n": ModelHealth(2.0, 2.0, 20.0), "down": ModelHealth(0.0, 3.0)}
    assert replace(CALM, health=models).latency_s == 4.0
    assert replace(CALM, health={}).latency_s is None
    assert models["down"].latency_s is None


def test_pools_are_summed_up():
    busy = replace(CALM, open=8, health={"m": ModelHealth(3.0, 4.0, 6.0)})
    idle = replace(CALM, open=0, health={"m": ModelHealth(1.0, 1.0, 4.0)})
    told = summary([CALM, busy, idle, replace(CALM, breaker="open", open=0)])
    assert told == {
        "ready": 2, "busy": 1, "offline": 1, "idle": 1, "mean_load": 0.375, "mean_success_rate": 0.875,
        "mean_latency_s": 3.0,
    }  # fmt: skip
    assert summary_line([CALM, busy]).plain == (
        "2 pools: 1 ready (0 idle), 1 busy, 0 offline; on average load 75 %, 75.0 % of the calls succeed, in 2.00 s"
    )
