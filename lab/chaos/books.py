"""The report's books against the provider's own log, for one run.

Where no process died, was silent, or found a store without its last writes, they are equal to the call and to the
token. Else they may lack what those processes had not recorded: never more is told than was made, and at most as many
calls are missing as were open, or had just ended, when that happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REFUSALS = frozenset({429, 529})


def compare(
    counters: Mapping[str, int], entries: Sequence[Mapping[str, Any]], *, excused: int, fails: bool, unreached: bool,
    died: bool, opinions: Sequence[Mapping[str, Any]],
) -> Iterator[str]:  # fmt: skip
    """What differs. `counters` are the ledger's of the job, `entries` the provider's log, `opinions` the files'.

    `excused` calls need not be told; the provider `fails` (its statuses say more than these books); calls may not
    have `unreached` it, and are told though it knows nothing of them. Of a process that `died` claims may have been
    open whose calls had not begun: nobody can know that, so they are told as possible charges.
    """
    calls = len(entries)
    if not calls - excused <= counters["calls"] <= (10**9 if unreached else calls):
        yield f"calls: {counters['calls']} are told, {calls} were made, {excused} of them excused"
    for side in ("input", "output"):
        told = counters["tokens_in" if side == "input" else "tokens_out"]
        taken = [e[f"{side}_tokens"] for e in entries if e["status"] == 200]
        fewest = 0 if fails else sum(sorted(taken)[: max(0, len(taken) - excused)])
        if not fewest <= told <= sum(taken):
            yield f"{side} tokens: {told} are told, {sum(taken)} were taken, {excused} calls excused"
        kept = sum(o["usage"][f"{side}_tokens"] for o in opinions if o["score"] is not None)
        if kept > sum(taken):
            yield f"{side} tokens: opinions tell of {kept}, {sum(taken)} were taken"
    refused = sum(e["status"] in REFUSALS for e in entries)
    if not refused - excused <= counters["requeues"] <= refused:
        yield f"requeues: {counters['requeues']} are told, {refused} calls were refused"
    if fails or excused:
        return
    for name in ("retries", "timeouts", "calls_without_answer", "possible_double_charges", "stale", "lost"):
        if counters[name] and not (died and name == "possible_double_charges"):
            yield f"{name}: {counters[name]} are told, and nothing went wrong"
