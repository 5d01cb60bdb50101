"""What a full part of the audit log gives up: nobody's lines for somebody else's, nothing silently, and nothing that
was tampered with becomes good."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from dicast.app.access import audit as module
from dicast.app.access.audit import UNCHECKED, Audit, AuditLine, Part, _displaced_seal, _read_displaced
from dicast.app.access.displacing import OTHERS, Displaced, even_shares, lines_to_displace, merged
from tests.access.conftest import OTHER, SECRET, secrets_of

LIST, HEAD, LOCK = "{dicast}.access:audit", "{dicast}.access:audit_head", "{dicast}.access:audit_displacing"
MOST, DROP = 40, 10


@pytest.fixture(autouse=True)
def small_drop(monkeypatch):
    monkeypatch.setattr(module, "DROP", DROP)


@pytest.fixture
def audit(client, clock) -> Audit:
    return Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=MOST)


def lines_of(audit: Audit, part: Part = Part.ORDERS) -> list[AuditLine]:
    return [line for of, line in audit.entries() if of is part and line.action != "displaced"]


def events(audit: Audit, part: Part = Part.ORDERS) -> Counter[str]:
    """How often who did what, by the lines that are held and the counts of those that are not."""
    found = Counter[str]()
    for of, line in audit.entries():
        if of is part and line.action == "displaced":
            found.update(line.details["counts"])
        elif of is part:
            found[f"{line.actor} {line.action}"] += 1
    return found


def flood(audit: Audit, times: int = 200, subject: str = "robot", action: str = "node.cordon") -> None:
    for n in range(times):
        audit.record(subject, action, f"n{n}", "done")


# ------------------------------------------------------------------ who displaces whom
def test_one_subjects_operations_displace_no_other_subjects_and_none_of_its_own_rare_ones(audit, clock):
    """At 600 a minute a token with rights wrote over 100,000 lines of everybody in 2.8 hours once."""
    rare = [
        audit.record("ada@desk", "token issue", "t1", "done"), audit.record("ada@desk", "token revoke", "t0", "done"),
        audit.record("robot", "pool.cap", "*", "done", {"slo": 3}), audit.record("ben", "node.remove", "n7", "done"),
    ]  # fmt: skip
    for n in range(500):
        clock.s += 1
        audit.record("robot", ("node.cordon", "node.uncordon")[n % 2], "n1", "done")
        if n == 250:
            rare.append(audit.record("robot", "node.remove", "n9", "done"))
    held = lines_of(audit)
    assert [line for line in held if line.action not in ("node.cordon", "node.uncordon")] == rare
    assert held[-1].number == 505, "the newest stay"
    assert {line.number for line in held} >= {5, 6}, "and the first of each kind"
    assert events(audit)["robot node.cordon"] == events(audit)["robot node.uncordon"] == 250
    finding = audit.verify()
    assert (finding.whole, finding.lines + finding.displaced) == (True, 505)


def test_two_who_flood_share_what_the_others_leave_over(audit):
    audit.record("ada", "token issue", "t", "done")
    for _ in range(100):
        audit.record("x", "node.drain", "n", "done")
        audit.record("y", "node.drain", "n", "done")
    flood(audit, 300, "x")
    held = Counter(line.actor for line in lines_of(audit))
    assert held["ada"] == 1
    assert held["y"] >= MOST // 4, "a third of what is always for lines, at the least"
    assert events(audit) == {"ada token issue": 1, "x node.drain": 100, "y node.drain": 100, "x node.cordon": 300}


def test_of_strangers_who_have_no_names_the_middle_goes(audit, clock):
    for n in range(300):
        audit.refuse_stranger("203.0.113.9", f"GET /{n}", "/", {"reason": "missing"})
        clock.s += module.MINUTE_S
    held = lines_of(audit, Part.STRANGERS)
    assert len(held) <= MOST + DROP and held[0].number == 1 and held[-1].number == 300


def test_counts_of_a_minute_that_are_displaced_are_counted_on(audit, clock):
    for _ in range(80):
        for _ in range(5):
            audit.count("panel", "rating.scores", "j")
        clock.s += module.MINUTE_S
    audit.settle()
    held = sum(sum(line.details["counts"].values()) for line in lines_of(audit, Part.WORK))
    displaced = sum(sum(line.details["counts"].values()) for _, line in audit.entries() if line.action == "displaced")
    assert displaced > 0 and held + displaced == 400


# ------------------------------------------------------------------ the rule by itself
KINDS = st.lists(
    st.none() | st.tuples(st.sampled_from("abcd"), st.sampled_from(["cordon", "drain", "cap"])), max_size=200
)


@given(KINDS, st.integers(4, 60))
def test_what_is_kept_fits_and_nobody_below_an_even_share_loses_a_line(kinds, most):
    chosen = lines_to_displace(kinds, most)
    assert all(kinds[at] is not None for at in chosen)
    runs = sum(
        1 for at, kind in enumerate(kinds)
        if (kind is not None and at not in chosen)
        or ((kind is None or at in chosen) and (at == 0 or (kinds[at - 1] is not None and at - 1 not in chosen)))
    )  # fmt: skip
    assert runs <= most + 1, "half of it may be lines that a record stands before and behind each"
    subjects = Counter(kind[0] for kind in kinds if kind is not None)
    lost = Counter(kinds[at][0] for at in chosen)
    for subject, size in subjects.items():
        if size <= most // 2 // len(subjects):
            assert not lost[subject]


@given(KINDS, st.integers(4, 60), st.integers(0, 200))
def test_one_subject_more_or_less_busy_changes_nothing_for_those_below_their_share(kinds, most, times):
    flooded = [*kinds, *[("z", "cordon")] * times]
    subjects = {kind[0] for kind in flooded if kind is not None}
    sizes = Counter(kind[0] for kind in flooded if kind is not None)
    lost = {flooded[at][0] for at in lines_to_displace(flooded, most)}
    assert not {who for who in subjects if sizes[who] <= most // 2 // len(subjects)} & lost


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100), max_size=20), st.integers(0, 500))
def test_shares_are_even_and_use_all_that_there_is(sizes, total):
    shares = even_shares(sizes, total)
    assert sum(shares.values()) == min(total, sum(sizes.values()))
    short = [shares[name] for name in sizes if shares[name] < sizes[name]]
    assert all(max(shares.values()) <= share + 1 for share in short)


def test_a_record_names_the_kinds_that_it_has_room_for_and_counts_all():
    runs = [Displaced(n, n, n, n, {f"s{n} do": 2}, 0, "", "", f"h{n - 1}", f"h{n}") for n in range(1, 81)]
    record = merged([merged(runs[:70]), *runs[70:]])
    assert (record.first, record.last, record.previous, record.hash) == (1, 80, "h0", "h80")
    assert sum(record.counts.values()) == 160 and record.counts[OTHERS] == 60 and len(record.counts) == 51


# ------------------------------------------------------------------ the chain
def record_at(client) -> tuple[int, Displaced]:
    for at, text in enumerate(client.lrange(LIST, 0, -1)):
        if record := _read_displaced(text):
            return at, record
    raise AssertionError("nothing was displaced")


def changed(client, **changes) -> None:
    at, record = record_at(client)
    client.lset(LIST, at, orjson.dumps(replace(record, **changes)))


def resealed_without_the_secret(client) -> None:
    at, record = record_at(client)
    other = replace(record, counts={"ada node.cordon": 1})
    client.lset(LIST, at, orjson.dumps(replace(other, seal=_displaced_seal(b"guessed", "", other))))


TAMPERING = {
    "counts": lambda client: changed(client, counts={}),
    "its end": lambda client: changed(client, last=record_at(client)[1].last + 1),
    "its beginning": lambda client: changed(client, first=record_at(client)[1].first - 1),
    "its times": lambda client: changed(client, since=0.0),
    "its hash": lambda client: changed(client, hash="0" * 64),
    "the hash before": lambda client: changed(client, previous="0" * 64),
    "the key's name": lambda client: changed(client, key="00000000"),
    "weak lines": lambda client: changed(client, weak=3),
    "a seal of its own": resealed_without_the_secret,
    "it is gone": lambda client: client.lrem(LIST, 1, client.lindex(LIST, record_at(client)[0])),
    "it is there twice": lambda client: client.linsert(
        LIST, "AFTER", client.lindex(LIST, record_at(client)[0]), client.lindex(LIST, record_at(client)[0])
    ),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_whoever_alters_what_tells_of_displaced_lines_is_found_out(audit, client, kind):
    flood(audit)
    assert audit.verify().whole
    first = record_at(client)[1].first
    TAMPERING[kind](client)
    finding = audit.verify()
    assert not finding.whole
    assert finding.broken >= first, kind
    flood(audit, 30)
    assert not audit.verify().whole, "not even after it was displaced itself"


def test_a_record_of_one_part_is_none_in_another(client, audit):
    """With the same numbers and hashes: its seal says of which part it is."""
    flood(audit)
    _, record = record_at(client)
    key = secrets_of(SECRET)[0].key("audit")
    assert record.seal == _displaced_seal(key, "", record) != _displaced_seal(key, "work ", record)


@pytest.mark.parametrize("kind", ["altered", "no line", "removed"])
def test_a_line_that_was_tampered_with_makes_no_good_log_when_it_is_displaced(audit, client, kind):
    flood(audit, 20)
    if kind == "altered":
        client.lset(LIST, 9, client.lindex(LIST, 9).replace('"n9"', '"n8"'))
    elif kind == "no line":
        client.lset(LIST, 9, "x")
    else:
        client.lrem(LIST, 1, client.lindex(LIST, 9))
    assert audit.verify().broken == 10
    flood(audit, 200)
    assert not audit.verify().whole
    assert [line.number for line in lines_of(audit)][-30:] == list(range(191, 221))
    assert client.llen(LIST) <= MOST + DROP, "but the log stays bounded"
    assert any("problem" in line.details for line in audit.lines())


def test_lines_of_a_secret_that_is_no_longer_known_are_one_kind_and_stay_doubtful(client, clock, audit):
    flood(audit, 30, "ada", "token issue")
    later = Audit(client, "dicast", secrets_of(OTHER), clock, lines_max=MOST)
    flood(later)
    assert sum(1 for line in lines_of(later) if line.actor == "ada") >= MOST // 4
    assert not later.verify().whole
    both = Audit(client, "dicast", secrets_of(OTHER, SECRET), clock, lines_max=MOST)
    doubtful = [line for line in both.lines() if "problem" in line.details]
    assert doubtful and "secret that is not known" in doubtful[0].details["problem"]
    assert UNCHECKED in doubtful[0].details["counts"]
    assert not both.verify().whole, "what was not checked when it was displaced cannot be now"


def test_a_log_begun_without_a_secret_goes_on_with_one(client, clock, audit):
    flood(Audit(client, "dicast", (), clock, lines_max=MOST), 120)
    flood(audit, 30)
    finding = audit.verify()
    assert (finding.whole, finding.weak, finding.lines + finding.displaced) == (True, 120, 150)
    flood(audit, 120)
    finding = audit.verify()
    assert (finding.whole, finding.weak, finding.lines + finding.displaced) == (True, 120, 270)


def test_who_has_no_secret_displaces_nothing_of_a_log_that_is_sealed_with_one(client, clock, audit):
    flood(audit, MOST + DROP)
    before = client.lrange(LIST, 0, -1)
    Audit(client, "dicast", (), clock, lines_max=MOST).record("x", "pool.cap", "*", "done")
    assert client.lrange(LIST, 0, -1)[:-1] == before


# ------------------------------------------------------------------ many at once, and trouble
def test_processes_that_displace_at_once_lose_and_double_nothing(client, clock):
    logs = [Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=MOST) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: logs[n % 8].record(f"s{n % 3}", "do", str(n), "done"), range(600)))
    finding = logs[0].verify()
    assert (finding.whole, finding.lines + finding.displaced) == (True, 600)
    assert events(logs[0]) == {f"s{n} do": 200 for n in range(3)}
    assert client.keys("*audit_shorter*") == [] and not client.exists(LOCK)


def test_lines_that_come_while_others_are_displaced_follow_them(audit, client, clock, monkeypatch):
    put, other = module._Chain._put, Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=MOST)

    def slow(chain, *args):
        monkeypatch.setattr(module._Chain, "_put", put)
        flood(other, 5, "ada", "token issue")
        put(chain, *args)

    monkeypatch.setattr(module._Chain, "_put", slow)
    flood(audit, MOST + DROP + 1)
    assert [line.actor for line in lines_of(audit)][-6:] == ["robot"] + 5 * ["ada"]
    finding = audit.verify()
    assert (finding.whole, finding.displaced > 0, finding.lines + finding.displaced) == (True, True, MOST + DROP + 6)


def test_what_another_has_displaced_meanwhile_is_not_put_back(audit, client, clock, monkeypatch):
    put, other = module._Chain._put, Audit(client, "dicast", secrets_of(SECRET), clock, lines_max=MOST)

    def late(chain, *args):
        monkeypatch.setattr(module._Chain, "_put", put)
        client.delete(LOCK)  # as when its time is over
        flood(other, 1)
        put(chain, *args)

    monkeypatch.setattr(module._Chain, "_put", late)
    flood(audit, MOST + DROP + 1)
    finding = audit.verify()
    assert (finding.whole, finding.lines + finding.displaced) == (True, MOST + DROP + 2)
    assert client.keys("*audit_shorter*") == []


def test_a_store_that_takes_no_shorter_list_has_the_line_all_the_same(audit, client, monkeypatch, caplog):
    def full(*_):
        raise ResponseError("OOM command not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(module._Chain, "_put", full)
        flood(audit, MOST + DROP + 3)
    assert client.llen(LIST) == MOST + DROP + 3
    assert "could be displaced: ResponseError" in caplog.text
    flood(audit, 1)
    assert client.llen(LIST) <= MOST + 1
    assert audit.verify().whole
