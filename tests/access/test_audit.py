"""The audit log: whatever is done to its lines without the secret is found, and the first broken line named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import orjson
import pytest

from dicast.app.access import audit as module
from dicast.app.access.audit import STORE_KEY, Audit, AuditLine, _hash, _read, _seal
from dicast.app.access.keys import TokenSecret
from tests.access.conftest import OTHER, SECRET, secrets_of


@pytest.fixture
def audit(client, clock):
    return Audit(client, "dicast", secrets_of(SECRET), clock)


@pytest.fixture
def log(client):
    """The name of the list."""
    return "{dicast}.access:audit"


def fill(audit, lines=6):
    for n in range(lines):
        audit.record("me", "cordon", f"node-{n}", "done", {"n": n})


def forged(line, key=b"guessed", **changes):
    other = replace(line, **changes)
    return orjson.dumps(replace(other, hash=_hash(key, other)))


def test_what_is_recorded_can_be_read_and_is_whole(audit, clock):
    line = audit.record("me", "drain", "n1", "done", {"open": 2})
    clock.s += 1
    audit.record("unknown", "GET /status", "-", "refused", {"reason": "expired"})
    lines = list(audit.lines())
    assert lines[0] == line
    assert [(x.number, x.actor, x.action, x.object, x.outcome) for x in lines] == [
        (1, "me", "drain", "n1", "done"), (1, "unknown", "GET /status", "-", "refused"),
    ]  # fmt: skip
    assert lines[1].at - lines[0].at == 1
    assert [x.actor for x in audit.lines(newest=1)] == ["unknown"]
    finding = audit.verify()
    assert (finding.whole, finding.lines, finding.first, finding.weak) == (True, 2, 1, 0)


def test_an_empty_log_is_whole(audit):
    assert audit.verify() == module.AuditFinding(0, 1)


def altered(client, log, index, **changes):
    client.lset(log, index, orjson.dumps({**orjson.loads(client.lindex(log, index)), **changes}))


TAMPERING = {
    "a word is altered": (lambda c, k: altered(c, k, 2, outcome="refused"), 3),
    "a detail is altered": (lambda c, k: altered(c, k, 2, details={"n": 9}), 3),
    "a field is added": (lambda c, k: altered(c, k, 2, more=1), 3),
    "a number is altered": (lambda c, k: altered(c, k, 2, number=7), 3),
    "a time is altered": (lambda c, k: altered(c, k, 0, at=1.0), 1),
    "the key's name is altered": (lambda c, k: altered(c, k, 2, key="00000000"), 3),
    "a line is no JSON": (lambda c, k: c.lset(k, 2, "x"), 3),
    "a line is removed": (lambda c, k: c.lrem(k, 1, c.lindex(k, 2)), 3),
    "the first is removed": (lambda c, k: c.lpop(k), 1),
    "the last is removed": (lambda c, k: c.rpop(k), 6),
    "the last three are removed": (lambda c, k: c.ltrim(k, 0, 2), 4),
    "all are removed": (lambda c, k: c.delete(k), 1),
    "two are swapped": (
        lambda c, k: [c.lset(k, at, line) for at, line in ((1, c.lindex(k, 2)), (2, c.lindex(k, 1)))], 2,
    ),
    "one is there twice": (lambda c, k: c.linsert(k, "AFTER", c.lindex(k, 2), c.lindex(k, 2)), 4),
    "one is added at the end": (lambda c, k: c.rpush(k, c.lindex(k, 5)), 7),
    "the head is gone": (lambda c, k: c.delete(k + "_head"), 1),
    "the head counts less": (lambda c, k: c.hset(k + "_head", "count", 5), 6),
    "the seal is altered": (lambda c, k: c.hset(k + "_head", "seal", "x"), 6),
    "another anchor": (lambda c, k: c.hset(k + "_head", mapping={"trimmed": 1, "anchor": "x"}), 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", TAMPERING)
def test_tampering_is_found_and_its_first_line_named(audit, client, log, kind):
    fill(audit)
    assert audit.verify().whole
    act, broken = TAMPERING[kind]
    act(client, log)
    finding = audit.verify()
    assert not finding.whole, kind
    assert finding.broken == broken, finding


def test_the_end_cut_off_is_found_though_the_head_is_made_to_fit(audit, client, log):
    """Whoever writes to the store can put the head's count back, but not seal it."""
    fill(audit)
    client.ltrim(log, 0, 3)
    client.hset(log + "_head", mapping={"count": 4, "hash": _read(client.lindex(log, -1)).hash})
    finding = audit.verify()
    assert (finding.whole, finding.broken) == (False, 4)
    assert "seal" in finding.problem


def test_a_chain_recomputed_without_the_secret_is_found(audit, client, log):
    fill(audit)
    lines = [_read(text) for text in client.lrange(log, 0, -1)]
    rewritten, previous = [], ""
    for line in lines:
        made = orjson.loads(forged(line, outcome="rewritten", previous=previous))
        previous = made["hash"]
        rewritten.append(orjson.dumps(made))
    client.delete(log)
    client.rpush(log, *rewritten)
    client.hset(log + "_head", mapping={"hash": previous, "seal": _seal(b"guessed", "x", "head", 6, previous)})
    assert (audit.verify().broken, audit.verify().problem) == (1, "it is altered")


def test_lines_with_the_stores_key_cannot_follow_sealed_ones(audit, client, clock):
    """Who can read the store has its own key, and could go on with it."""
    weak = Audit(client, "dicast", (), clock)
    fill(weak, 2)
    assert (weak.verify().whole, weak.verify().weak) == (True, 0)
    assert (audit.verify().whole, audit.verify().weak) == (True, 2)
    fill(audit, 2)
    assert (audit.verify().whole, audit.verify().lines, audit.verify().weak) == (True, 4, 2)
    fill(weak, 1)
    finding = audit.verify()
    assert (finding.broken, "without the secret" in finding.problem) == (5, True)
    assert {line.key for line in weak.lines()} == {STORE_KEY, secrets_of(SECRET)[0].fingerprint}


def test_a_changed_secret_is_known_as_long_as_it_is_given(audit, client, clock):
    fill(audit, 2)
    both = Audit(client, "dicast", secrets_of(OTHER, SECRET), clock)
    fill(both, 2)
    assert both.verify().whole
    after = Audit(client, "dicast", secrets_of(OTHER), clock).verify()
    assert (after.broken, "secret that is not known here" in after.problem) == (1, True)


def test_the_log_is_bounded_and_what_is_left_is_whole(client, log, clock, monkeypatch):
    monkeypatch.setattr(module, "DROP", 5)
    audit = Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=10)
    fill(audit, 33)
    finding = audit.verify()
    assert finding.whole and finding.displaced > 15
    assert client.llen(log) == finding.lines + 1 <= 15
    assert finding.lines + finding.displaced == 33
    client.lpop(log)
    assert audit.verify().broken == finding.first


def test_servers_side_by_side_make_one_chain(client, redis_url, clock):
    logs = [Audit(client, "dicast", secrets_of(SECRET), clock) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: logs[n % 8].record("me", "do", str(n), "done"), range(400)))
    finding = logs[0].verify()
    assert (finding.whole, finding.lines) == (True, 400)
    assert {line.object for line in logs[0].lines()} == {str(n) for n in range(400)}


@pytest.mark.parametrize(
    "details",
    [{"x": "y" * 5000}, {"x": 2**70}, {"x": "\ud800"}, {"x": {1, 2}}, {1: b"x"}, {}],
)
def test_whatever_is_told_is_recorded(audit, details):
    audit.record("\ud800" + "a" * 500, "b\n", "c", "d", details)
    assert audit.verify().whole
    (line,) = audit.lines()
    assert len(line.actor) == 200 and len(orjson.dumps(line.details)) < 2100


def test_another_namespace_is_another_chain(audit, client, clock):
    fill(audit, 3)
    blue = Audit(client, "blue", TokenSecret.all_of([SECRET], "blue"), clock)
    fill(blue, 2)
    assert (audit.verify().lines, blue.verify().lines) == (3, 2)
    client.lset("{blue}.access:audit", 0, client.lindex("{dicast}.access:audit", 0))
    assert blue.verify().broken == 1


def test_a_line_is_written_as_it_is_read():
    line = AuditLine(1, 1.5, "a", "b", "c", "d", {"e": [1, 2.5, None]}, "k", "")
    assert _read(orjson.dumps(line).decode()) == line == AuditLine(**asdict(line))
