"""The scripts against their Python model: random histories through both, on a real server.

Verdicts, reasons, waits, limits, bucket levels and the events for the governor have to be equal at every step.
`ADMISSION_HISTORIES=n` runs more of them.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest

from dicast.workers.admission.governor_store import GovernorStore
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Returned, Want
from dicast.workers.policy.calls import CallOutcome, Cost
from dicast.workers.policy.headers import NO_READINGS, BudgetUnit, Reading, Readings
from dicast.workers.policy.parameters import BreakerPhase, Bucket, FairMode
from dicast.workers.store.connection import connect_async
from dicast.workers.store.keys import Keys
from lab.simulation import enforcer as model
from lab.simulation.enforcer import CallRequest, Denied, EnforcementState, LeaseRecord
from tests.workers.pools import obey, parameters

HISTORIES = int(os.environ.get("ADMISSION_HISTORIES", "120"))
STEPS = 40
TTL_S = 30.0
MODELS = ("", "small", "large|odd")
PROJECTS = ("a", "b", "c|%20ö")
JOBS = {"wide": 40, "narrow": 2}


class Both:
    """One history: the same calls go to the scripts and to the model."""

    def __init__(self, client, keys, seed):
        self.chance = random.Random(seed)
        self.client, self.keys = client, keys
        self.leases, self.governor = LeaseStore(client, keys), GovernorStore(client, keys)
        self.now_ms = 1_700_000_000_000
        self.params = parameters(self.chance.choice([1, 3, 8]))
        self.state = EnforcementState()
        self.of_job: dict[str, str] = {}
        self.serial = itertools.count()
        self.events: list[object] = []

    @property
    def now(self):
        return self.now_ms / 1000

    async def start(self):
        await self.client.hset(self.keys.job_limits, mapping=JOBS)
        await self.decide()

    async def decide(self):
        """New parameters of any kind."""
        chance, now, old = self.chance, self.now, self.params
        limit = chance.choice([1, 2, 5, 12, 60])
        self.params = parameters(
            version=old.version + 1,
            decided_at=now,
            limit=limit,
            limit_if_refused=chance.choice([chance.randint(1, limit), max(1, limit - 1)]),
            counts_after=chance.choice([-1e9, now - 1.0, now]),
            known_refusals=chance.choice([-1, self.state.refusals, max(0, self.state.refusals - chance.randint(0, 3))]),
            stop_after=chance.choice([1, 2, 1000]),
            feedback_s=chance.choice([0.25, 1.0]),
            hold_until=chance.choice([0.0, 0.0, 0.0, now + 0.5]),
            single_call_s=chance.choice([0.0, 0.0, 0.0, 0.4]),
            pace_s=chance.choice([0.0, 0.0, 0.05, 0.3]),
            burst_s=chance.choice([0.0, 0.2]),
            pace_jitter=chance.choice([0.0, 0.5]),
            breaker=chance.choice([BreakerPhase.CLOSED] * 5 + [BreakerPhase.OPEN, BreakerPhase.HALF_OPEN]),
            breaker_until=now + chance.choice([0.0, 1.0]),
            break_number=chance.randint(1, 3),
            probe_s=chance.choice([2.0, 120.0]),
            buckets=tuple(self.bucket(unit, name) for unit in BudgetUnit for name in MODELS if chance.random() < 0.15),
            token_scale=chance.choice([1.0, 0.7]),
            stale_after_s=chance.choice([3.0, 1e12]),
            fair=chance.choice(list(FairMode)),
            weights=chance.choice([{}, {"a": 2.0, "b": 1.0}]),
            project_max=chance.choice([{}, {}, {"a": 1}, {"*": 0.5, "b": 3}, {"c|%20ö": 0.25}]),
            demand_ttl_s=chance.choice([1.0, 5.0]),
        )
        await obey(self.client, self.keys, "p", self.params)

    def bucket(self, unit, name):
        chance = self.chance
        size = 1.0 if unit is BudgetUnit.REQUESTS else 100.0
        spent = self.state.spent.get(name, Cost(0.0))
        return Bucket(
            name=f"{unit}:{name}",
            unit=unit,
            model=name,
            capacity=size * chance.choice([1.0, 5.0, 40.0]),
            refill_per_s=(1.0 if unit is BudgetUnit.REQUESTS else 107.0)
            * chance.choice([0.3, 2.0, 10.0]),  # no tie of waits
            drain_per_s=size * chance.choice([0.0, 0.0, 1.0]),
            paced=chance.random() < 0.5,
            snapshot=chance.choice([0, 0, self.params.version]),
            level=size * chance.uniform(0.0, 5.0),
            spent=max(0.0, model.amount(unit, spent) - size * chance.uniform(0.0, 3.0)),
            dated_at=self.now - chance.uniform(0.0, 2.0),
            credit=chance.choice([0.0, 0.0, 2.0]),
            full_at=chance.choice([0.0, 0.0, self.now - 3.0, self.now + 0.5, self.now + 30.0]),
            full_every_s=chance.choice([0.0, 1.0, 10.0]),
        )

    def outcome(self):
        chance = self.chance
        told = Readings((Reading("x-ratelimit", BudgetUnit.REQUESTS, 60.0, 12.5, 0.0, 3.25),), 1.5, 0.01, ("x-quota",))
        readings = told if chance.random() < 0.3 else NO_READINGS
        used = Cost(1.0, chance.choice([0.0, 30.0]), chance.choice([0.0, 90.0]))
        return CallOutcome(
            chance.choice([200, 200, 204, 429, 529, 500, 0, 400]), used, readings, chance.choice(["r1", "r|2"])
        )

    async def step(self):
        chance = self.chance
        self.now_ms += chance.choice([0, 0, 1, 7, 40, 250, 900, 6000]) if chance.random() > 0.03 else 45_000
        if chance.random() < 0.15:
            await self.decide()
        open_calls = list(self.state.leases)
        back = [
            Returned(call, self.outcome() if chance.random() < 0.9 else None)
            for call in chance.sample(open_calls, chance.randint(0, min(4, len(open_calls))))
        ]
        if chance.random() < 0.05 and back:
            back.append(back[0])
        wants = [self.want() for _ in range(chance.randint(0, 6))]
        answer = await self.leases.admit(
            pool="p", node="n", ttl_ms=int(TTL_S * 1000), give_back=back, wants=wants, now_ms=self.now_ms
        )
        for given in back:
            self.give_back(given)
        model.obey(self.params, self.state)  # the model would at its next grant, the scripts do at once
        for call in list(model._expired(self.state, self.now)):
            model._remove(self.state, call)
        for want, verdict, reason, wait_ms in zip(wants, answer.verdicts, answer.reasons, answer.waits_ms, strict=True):
            expected = self.ask(want)
            if isinstance(expected, Denied):
                assert (verdict, reason) == (LeaseVerdict.DENIED, expected.reason), (want, expected)
                told = -1 if expected.retry_after_ms is None else expected.retry_after_ms
                assert abs(wait_ms - told) <= 1
            else:
                assert (verdict, reason) == (LeaseVerdict.GRANTED, ""), (want, reason)
        assert answer.open_in_pool == len(self.state.leases)
        assert answer.limit == model.effective_limit(self.params, self.state, self.now)
        assert answer.open_in_all <= max(JOBS.values())
        await self.compare()

    def want(self):
        chance = self.chance
        return Want(
            lease=f"l{next(self.serial)}",
            job=chance.choice(list(JOBS)),
            project=chance.choice(PROJECTS),
            model=chance.choice((*MODELS, f"passing {next(self.serial) // 20}")),
            input_tokens=chance.choice([0.0, 20.0, 150.0]),
            output_tokens=chance.choice([0.0, 60.0]),
            jitter=chance.uniform(-1.0, 1.0),
            last=chance.random() < 0.3,
        )

    def ask(self, want):
        """What the model says, under the rules around it: all pools' limit and the job's."""
        room = max(JOBS.values()) - len(self.state.leases)
        in_job = sum(self.of_job[call] == want.job for call in self.state.leases)
        if room > 0 and in_job >= JOBS[want.job]:
            if want.project in self.state.projects:
                self.state.projects[want.project].waiting = False
            return Denied("job_limit")
        request = CallRequest(want.lease, want.project, want.model, *want[4:7], lease_s=TTL_S, last=want.last)
        if room <= 0:
            model._begin(self.params, self.state, request, self.now)
            self.state.projects[want.project].waiting = True
            self.state.held_by = "limit"
            return Denied("total_limit")
        held = replace(self.params, limit=min(self.params.limit, len(self.state.leases) + room))
        answer = model.grant(held, self.state, request, self.now)
        if not isinstance(answer, Denied):
            self.of_job[want.lease] = want.job
            limit = model.effective_limit(self.params, self.state, self.now)
            self.events.append(replace(answer.sent, limit=limit))
        return answer

    def give_back(self, given):
        lease: LeaseRecord | None = self.state.leases.get(given.lease)
        if lease is None:
            return
        if given.outcome is not None:
            done = model.release(self.params, self.state, given.lease, given.outcome, self.now)
            self.events.append(done)
            return
        model.release(self.params, self.state, given.lease, CallOutcome(0), self.now)

    async def compare(self):
        """What the scripts remember, and what they told."""
        state = self.state
        remembered = await self.governor.enforcement("p")
        for name, fill in state.fills.items():
            theirs = remembered["fills"][name]
            for field in ("level", "next_at", "credit", "snapshot", "full_at"):
                assert theirs[field] == pytest.approx(getattr(fill, field), abs=1e-6), (name, field)
        assert set(remembered["spent"]) == set(state.spent)
        for name, spent in state.spent.items():
            assert remembered["spent"][name][:3] == pytest.approx(list(spent), abs=1e-6)
        for field in ("held_by", "refusals", "refused", "refused_sent_at"):
            assert remembered[field] == getattr(state, field), field
        assert (remembered["probe"], remembered["probe_until"]) == (state.probe, pytest.approx(state.probe_until))
        assert set(remembered["projects"]) == set(state.projects)
        for name, standing in state.projects.items():
            theirs = remembered["projects"][name]
            assert (theirs["open"], theirs["waiting"]) == (standing.open, standing.waiting), name
            assert theirs["service"] == pytest.approx(standing.service, abs=1e-6)


@pytest.mark.parametrize("block", range(4))
async def test_the_scripts_do_what_the_model_does(redis_url, block):
    client = connect_async(redis_url)
    try:
        for seed in range(block, HISTORIES, 4):
            keys = Keys(f"h{seed}")
            both = Both(client, keys, seed)
            await both.start()
            for step in range(STEPS):
                try:
                    await both.step()
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}, step {step}: {error}") from error
            told = (await both.governor.read("p", now_ms=both.now_ms)).events
            assert told == both.events, f"seed {seed}"
    finally:
        await client.aclose()
