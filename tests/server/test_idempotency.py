"""What the store keeps under an idempotency key, for whom, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from dicast.app.application import Dicast
from dicast.app.server.errors import InvalidRequest
from dicast.app.server.parts import KEPT_S, KEY_CHARS, IdempotencyKeys, KeyReused, ServerKeys
from tests.server.serving import installation


@pytest.fixture
def dicast(tmp_path: Path, redis_url: str) -> Dicast:
    return installation(tmp_path, redis_url)


@pytest.fixture
def keys(dicast: Dicast) -> IdempotencyKeys:
    return IdempotencyKeys(dicast.store, ServerKeys("n"))


def test_the_first_job_of_a_key_is_everybodys(keys: IdempotencyKeys) -> None:
    assert keys.find_answer("ada", "k", "request") is None
    assert keys.hold("ada", "k", "request", "one") == "one"
    assert keys.find_answer("ada", "k", "request") is None, "it is not answered yet"
    assert keys.hold("ada", "k", "request", "two") == "one"
    keys.keep_answer("ada", "k", {"id": "one"})
    assert keys.find_answer("ada", "k", "request") == {"id": "one"}
    assert keys.hold("ben", "k", "another", "three") == "three", "each subject has its own"
    assert keys.find_answer("ben", "k", "another") is None


def test_a_key_with_another_request_is_refused_before_and_after_its_answer(keys: IdempotencyKeys) -> None:
    keys.hold("ada", "k", "request", "one")
    for answer in (None, {"id": "one"}):
        if answer is not None:
            keys.keep_answer("ada", "k", answer)
        with pytest.raises(KeyReused, match="'k' came before with another request"):
            keys.hold("ada", "k", "another", "two")
        with pytest.raises(KeyReused, match="'k' came before with another request"):
            keys.find_answer("ada", "k", "another")


def test_a_key_is_kept_for_a_day_from_its_first_request_on(keys: IdempotencyKeys, dicast: Dicast) -> None:
    record = ServerKeys("n").idempotency("ada", "k")
    keys.hold("ada", "k", "request", "one")
    assert KEPT_S - 10 < dicast.store.ttl(record) <= KEPT_S
    dicast.store.expire(record, 100)
    keys.hold("ada", "k", "request", "one")
    keys.keep_answer("ada", "k", {"id": "one"})
    assert 0 < dicast.store.ttl(record) <= 100, "neither a repetition nor its answer prolongs it"
    dicast.store.persist(record)
    keys.keep_answer("ada", "k", {"id": "one"})
    assert KEPT_S - 10 < dicast.store.ttl(record) <= KEPT_S
    dicast.store.delete(record)
    keys.keep_answer("ada", "k", {"id": "one"})
    assert not dicast.store.exists(record), "an answer that comes too late occupies nothing"


def test_no_two_subjects_and_keys_share_a_record() -> None:
    names = [ServerKeys("n").idempotency(*pair) for pair in (("a b", "c"), ("a", "b c"), ("a b c", ""), ("1 a", "b"))]
    assert len(set(names)) == 4
    assert all(name.startswith("{n}.http:idempotency:") for name in names)


@pytest.mark.parametrize("key, taken", [
    ("k", True), ("x" * KEY_CHARS, True), (" ~", True),
    ("", False), ("x" * (KEY_CHARS + 1), False), ("\u00e9", False), ("a\tb", False), ("\x7f", False),
])  # fmt: skip
def test_a_key_is_printable_and_short(keys: IdempotencyKeys, key: str, taken: bool) -> None:
    if taken:
        assert keys.hold("ada", key, "request", "one") == "one"
        return
    for refused in (lambda: keys.hold("ada", key, "request", "one"), lambda: keys.find_answer("ada", key, "request")):
        with pytest.raises(InvalidRequest, match=f"must be 1 to {KEY_CHARS} printable ASCII characters"):
            refused()
