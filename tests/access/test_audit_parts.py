"""The parts of the audit log: nobody's refusals displace what others did, and nothing that happened goes uncounted."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dicast.app.access import audit as module
from dicast.app.access.audit import MINUTE_S, SHARES, Audit, AuditLine, Part, network
from tests.access.conftest import SECRET, secrets_of

EARLIER = json.loads(Path(__file__).with_name("audit_log_of_one_part.json").read_text())
"""What version 0.1 wrote: five lines of all kinds in one chain, of which it has dropped two."""


@pytest.fixture
def audit(client, clock) -> Audit:
    return Audit(client, "dicast", secrets_of(SECRET), clock)


def entries(audit: Audit, part: Part) -> list[AuditLine]:
    return [line for of, line in audit.entries() if of is part]


def refuse(audit: Audit, address: str = "203.0.113.7", reason: str = "signature") -> AuditLine | None:
    return audit.refuse_stranger(address, "GET /jobs", "/jobs", {"reason": reason, "address": address})


def next_minute(clock) -> None:
    clock.s += MINUTE_S


def total(audit: Audit, part: Part) -> int:
    """Lines and what they count."""
    return sum(sum(line.details["counts"].values()) if "counts" in line.details else 1 for line in entries(audit, part))


# ------------------------------------------------------------------ strangers
def test_strangers_displace_nothing_that_was_done(client, clock, monkeypatch):
    """Eleven minutes of 154 refusals a second wrote over the whole log once; here a bound of 10 lines stands for it."""
    monkeypatch.setattr(module, "DROP", 2)
    audit = Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=10)
    done = [audit.record("ada", "node.cordon", f"n{n}", "done") for n in range(3)]
    done += [audit.record("ci", "job.submit", f"j{n}", "done") for n in range(3)]
    for minute in range(20):
        for n in range(30):
            refuse(audit, f"203.0.{minute}.{n}", "missing" if n % 2 else "signature")
        next_minute(clock)
    audit.settle()
    assert [line for part in (Part.ORDERS, Part.WORK) for line in entries(audit, part)] == done
    assert len(entries(audit, Part.STRANGERS)) <= 12
    assert audit.verify().whole


def test_a_strangers_minute_is_sampled_and_counted_exactly(audit, clock):
    lines = [refuse(audit, f"203.0.113.{n % 250}") for n in range(500)]
    lines += [refuse(audit, "2001:db8:1:2::3", "missing") for _ in range(7)]
    assert [line is not None for line in lines] == [True] + 499 * [False] + [True] + 6 * [False]
    assert audit.pending() == 505
    next_minute(clock)
    assert refuse(audit) is not None  # which also sums up the minute before
    assert audit.pending() == 0
    start = int(clock.s // MINUTE_S - 1) * MINUTE_S
    sums = [line for line in entries(audit, Part.STRANGERS) if line.action == "counted"]
    counts = {"203.0.113.0/24 signature": 499, "2001:db8:1::/48 missing": 6}
    assert [(line.actor, line.outcome, line.details) for line in sums] == [
        ("nobody", "refused", {"since": start, "seconds": 60, "counts": counts})
    ]
    assert total(audit, Part.STRANGERS) == 508


def test_however_many_networks_come_the_lines_and_the_store_are_bounded(audit, client, clock):
    share = SHARES[Part.STRANGERS]
    calls = 5 * share.counts
    for n in range(calls):
        refuse(audit, f"10.{n // 250}.{n % 250}.1", "malformed")
    assert client.hlen("{dicast}.access:audit_counts") <= share.counts + 3 * share.lines + 5
    next_minute(clock)
    audit.settle()
    lines = entries(audit, Part.STRANGERS)
    assert total(audit, Part.STRANGERS) == calls
    assert len(lines) <= share.lines + share.counts // module.SUMMED_TOGETHER + 1
    counts = Counter[str]()
    for line in lines:
        counts.update(line.details.get("counts", {}))
    assert counts["other networks malformed"] == calls - share.lines - share.counts
    assert client.hlen("{dicast}.access:audit_counts") == 1, "the present minute's name is all that is left"


@pytest.mark.parametrize(
    ("address", "of"),
    [
        ("203.0.113.77", "203.0.113.0/24"), ("2001:db8:1:2::9", "2001:db8:1::/48"), ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("fe80::1%eth0", "fe80::/48"), ("", "unknown"), ("testclient", "unknown"),
    ],
)  # fmt: skip
def test_addresses_are_counted_by_network(address, of):
    assert network(address) == of


# ------------------------------------------------------------------ known subjects
def test_a_weak_tokens_refusals_are_bounded_and_displace_no_operation(client, clock, monkeypatch):
    monkeypatch.setattr(module, "DROP", 2)
    audit = Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=40)
    audit.record("ada", "pool.change", "openai", "done")
    audit.record("ci", "job.submit", "j", "done")
    for minute in range(10):
        for n in range(600):
            outcome = "refused" if n % 3 else "nothing to do"
            audit.record("weak", "job.cancel", f"j{n}", outcome, {"problem": "unknown-job"} if n % 3 else {})
        if minute == 9:
            audit.record("ben", "job.cancel", "k", "refused", {"problem": "unknown-job"})
        next_minute(clock)
    audit.settle()
    assert [line.actor for line in entries(audit, Part.ORDERS) + entries(audit, Part.WORK)] == ["ada", "ci"]
    assert "ben" in {line.actor for line in entries(audit, Part.REFUSALS)}, "each subject has lines of its own"
    sums = [line for line in entries(audit, Part.REFUSALS) if line.action == "counted"][-1]
    own = SHARES[Part.REFUSALS].of_group
    assert (sums.actor, sum(sums.details["counts"].values())) == ("weak", 600 - own)
    assert set(sums.details["counts"]) == {"job.cancel: unknown-job", "job.cancel: nothing to do"}


def test_work_displaces_no_orders(client, clock, monkeypatch):
    monkeypatch.setattr(module, "DROP", 2)
    audit = Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=10)
    audit.record("ada", "token issue", "t", "done")
    for n in range(50):
        audit.record("ci", "job.submit", f"j{n}", "done")
    assert [line.action for line in entries(audit, Part.ORDERS)] == ["token issue"]
    assert len(entries(audit, Part.WORK)) <= 12


def test_ratings_are_counted_by_who_rated_and_what(audit, clock):
    for n in range(30):
        audit.count("panel", "rating.scores", f"j{n % 2}")
    next_minute(clock)
    audit.settle()
    (line,) = entries(audit, Part.WORK)
    assert (line.actor, line.action, line.outcome) == ("panel", "counted", "done")
    assert line.details["counts"] == {"rating.scores j0": 15, "rating.scores j1": 15}


# ------------------------------------------------------------------ sums
def test_processes_that_count_and_sum_up_at_once_lose_and_double_nothing(client, clock):
    logs = [Audit(client, "dicast", secrets_of(SECRET), clock) for _ in range(8)]

    def work(n: int) -> None:
        refuse(logs[n % 8], f"203.0.{n % 5}.1", ("missing", "signature")[n % 2])
        logs[n % 8].record(f"subject {n % 3}", "GET /pools", "/pools", "refused", {"reason": "scope"})
        if n % 50 == 49:
            clock.s += MINUTE_S / 2
        if n % 10 == 0:
            logs[(n + 1) % 8].settle()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(600)))
    next_minute(clock)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(Audit.settle, logs))
    assert (total(logs[0], Part.STRANGERS), total(logs[0], Part.REFUSALS)) == (600, 600)
    finding = logs[0].verify()
    assert finding.whole and logs[0].pending() == 0


def test_a_sum_that_was_not_written_is_written_by_the_next(audit, client, clock, monkeypatch):
    """A server that is killed between two lines leaves the other counts where they are."""
    for n in range(40):
        refuse(audit, f"10.0.{n}.1")
    next_minute(clock)
    append, calls = module._Chain.append, Counter()

    def dies(chain, words, counts=None):
        calls["append"] += 1
        if calls["append"] == 2:
            raise KeyboardInterrupt
        return append(chain, words, counts)

    monkeypatch.setattr(module._Chain, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        audit.settle()
    monkeypatch.setattr(module._Chain, "append", append)
    Audit(client, "dicast", secrets_of(SECRET), clock).settle()
    assert total(audit, Part.STRANGERS) == 40


@pytest.mark.parametrize("subject", ["x\0y", "\ud800", "a" * 300, "", "nobody"])
def test_whatever_a_subject_is_called_its_refusals_are_counted(audit, clock, subject):
    for _ in range(20):
        audit.record(subject, "GET /\0pools", "/pools", "refused", {"reason": "scope"})
    next_minute(clock)
    audit.settle()
    assert total(audit, Part.REFUSALS) == 20
    assert audit.verify().whole


# ------------------------------------------------------------------ the chains
def test_a_log_of_the_earlier_version_is_read_checked_and_continued(audit, client):
    client.rpush("{dicast}.access:audit", *EARLIER["lines"])
    client.hset("{dicast}.access:audit_head", mapping=EARLIER["head"])
    finding = audit.verify()
    assert (finding.whole, finding.lines, finding.first) == (True, 3, 3)
    audit.record("ada@desk", "node.uncordon", "n1", "done")
    audit.record("ci", "job.submit", "j2", "done")
    refuse(audit)
    orders = entries(audit, Part.ORDERS)
    assert [(line.number, line.action) for line in orders] == [
        (3, "job.submit"), (4, "GET /jobs"), (5, "node.cordon"), (6, "node.uncordon"),
    ]  # fmt: skip
    finding = audit.verify()
    assert (finding.whole, finding.lines, finding.first) == (True, 6, 3)
    client.lset("{dicast}.access:audit", 1, EARLIER["lines"][2])
    assert (audit.verify().broken, audit.verify().part) == (4, "orders")


def key(part: Part, name: str = "audit") -> str:
    return f"{{dicast}}.access:{name}{':' * bool(part.key)}{part.key}"


@pytest.mark.parametrize("part", Part)
def test_each_part_is_checked(audit, client, part):
    for n in range(4):
        audit.record("ada", "pool.cap", "*", "done", {"slo": n})
        audit.record("ci", "job.submit", f"j{n}", "done")
        audit.record("ci", "job.cancel", f"j{n}", "refused", {"problem": "unknown-job"})
        refuse(audit, f"10.0.{n}.1")
    assert audit.verify() == module.AuditFinding(16, 1)
    client.lrem(key(part), 1, client.lindex(key(part), 1))
    finding = audit.verify()
    assert (finding.whole, finding.broken, finding.part) == (False, 2, part)


def test_one_part_cannot_stand_for_another(audit, client):
    """Its lines and its head are good, and its seal says of what."""
    audit.record("ada", "pool.cap", "*", "done")
    audit.record("ci", "job.submit", "j", "done")
    client.copy(key(Part.WORK), key(Part.ORDERS), replace=True)
    client.copy(key(Part.WORK, "audit_head"), key(Part.ORDERS, "audit_head"), replace=True)
    assert (audit.verify().whole, audit.verify().part) == (False, "orders")


def test_the_newest_lines_are_those_of_all_parts(audit, clock):
    for n in range(6):
        clock.s += 1
        audit.record("ada", ("pool.cap", "job.submit")[n % 2], str(n), "done")
    assert [line.object for line in audit.lines(3)] == ["3", "4", "5"]
    assert [line.object for line in audit.lines()] == list("012345")
    assert [line.object for line in audit.lines(100)] == list("012345")
