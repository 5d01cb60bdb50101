"""Faults of the provider: refusals, failures, answers that are none, broken connections."""

from __future__ import annotations

from collections.abc import Callable

from lab.chaos.catalogue import fault
from lab.chaos.runs import Run


def _misbehave(run: Run, seconds: float, **how: object) -> None:
    run.await_moment()
    run.place.provider.control(**how)
    run.pause(seconds)
    run.place.provider.control(noise_429=0.0, fail_5xx=0.0, overload_529=0.0, faults={}, retry_after_value=None)


@fault(weight=5, bad_answers=True, deadline_s=60)
def burst_of_429(run: Run) -> None:
    """For 2 s a third or all of the calls are refused, with a Retry-After of 1 s."""
    _misbehave(run, 2, noise_429=run.chance.choice([0.3, 1.0]), retry_after_value="1")


@fault(weight=3, bad_answers=True, deadline_s=60)
def odd_retry_after(run: Run) -> None:
    """Negative, empty, worded, infinite, past and double Retry-After with half of the calls for a second."""
    value = run.chance.choice(["-5", "", "soon", "nan", "1e400", "Wed, 21 Oct 2015 07:28:00 GMT", "0.5, 0.5"])
    _misbehave(run, 1, noise_429=0.5, retry_after_value=value)


@fault(weight=4, bad_answers=True, deadline_s=60)
def burst_of_529(run: Run) -> None:
    """For 2 s a third or all of the calls find the provider overloaded."""
    _misbehave(run, 2, overload_529=run.chance.choice([0.3, 1.0]))


@fault(weight=4, bad_answers=True, deadline_s=60)
def burst_of_5xx(run: Run) -> None:
    """For 2 s a third or all of the calls fail."""
    _misbehave(run, 2, fail_5xx=run.chance.choice([0.3, 1.0]))


def _answers(kind: str, what: str) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        _misbehave(run, 2, faults={kind: 0.3}, drip_interval=0.5, huge_bytes=20_000_000)

    inject.__name__, inject.__doc__ = f"answers_{kind}", f"For 2 s a third of the answers {what}."
    return inject


KINDS = {
    "hang": "never comes",
    "drip": "comes byte by byte, each half a second after the last",
    "huge": "has 20 MB",
    "bomb": "is small and unpacks to 20 MB",
    "cut": "breaks off in the middle",
    "invalid_json": "is no JSON",
    "html": "is an error page with status 200",
    "out_of_range": "has a score beyond the scale",
    "wrong_type": "has a score of another type",
    "null": "has no score",
    "missing": "lacks what was asked for",
    "duplicate": "has a criterion twice, with different scores",
    "unknown": "has criteria that nobody asked for",
    "chatter": "has talk around the JSON",
    "wrong_nonce": "carries another call's nonce",
    "swapped": "is the answer to another call",
}
"""As the simulated provider names them."""

for _kind, _what in KINDS.items():
    fault(weight=2, bad_answers=True, deadline_s=60)(_answers(_kind, _what))


@fault(weight=3, bad_answers=True, unreached=True, deadline_s=60)
def provider_refuses(run: Run) -> None:
    """For 1 to 3 s the provider takes no connection."""
    run.await_moment()
    run.strike()
    run.place.provider_link.set(refuse=True)
    run.pause(run.chance.uniform(1, 3))
    run.place.provider_link.set()


@fault(weight=3, bad_answers=True, unreached=True, deadline_s=60)
def provider_black_hole(run: Run) -> None:
    """For 1 to 5 s bytes to and from the provider vanish, then its connections end."""
    run.await_moment()
    run.strike()
    run.place.provider_link.set(hold=["up", "down"])
    run.pause(run.chance.uniform(1, 5))
    run.place.provider_link.set(cut=True)
    run.strike()


@fault(weight=3, bad_answers=True, unreached=True, deadline_s=60)
def provider_resets(run: Run) -> None:
    """For up to 1.5 s connections to the provider are reset."""
    run.await_moment()
    run.strike()
    run.place.provider_link.set(reset=True)
    run.pause(run.chance.uniform(0.3, 1.5))
    run.place.provider_link.set()
