"""Short ways to make what the policy takes and gives."""

from __future__ import annotations

from dicast.workers.policy.calls import NOTHING, Cost, Done, Sent
from dicast.workers.policy.headers import NO_READINGS, Readings
from dicast.workers.policy.parameters import Parameters


def parameters(limit: int = 10, **changes: object) -> Parameters:
    values: dict[str, object] = {
        "version": 1, "decided_at": 0.0, "limit": limit, "limit_if_refused": limit, "counts_after": -1.0, **changes
    }  # fmt: skip
    return Parameters(**values)  # type: ignore[arg-type]


def sent(call: str, at: float, open_before: int = 0, limit: int = 10, **changes: object) -> Sent:
    return Sent(call, at, open_before, limit, **changes)  # type: ignore[arg-type]


def done(
    call: str,
    at: float,
    sent_at: float,
    status: int = 200,
    *,
    open_before: int = 0,
    reporter: str = "unit",
    probe: bool = False,
    readings: Readings = NO_READINGS,
    spent: Cost = NOTHING,
) -> Done:
    return Done(call, at, sent_at, open_before, status, spent=spent, readings=readings, reporter=reporter, probe=probe)
