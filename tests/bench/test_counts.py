"""What a unit costs in commands, bytes and function calls has not risen. After a change that is worth its price:
`python -m lab.bench.counts --renew`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dicast.app.pipeline.messages import Messages
from lab.bench import admission
from lab.bench.counting import IN_SCRIPTS, Counts, commands, parts
from lab.bench.counts import COMMANDS, COMMANDS_MAX, all_commands, kept, risen


@pytest.fixture
def url() -> Iterator[str]:
    """The embedded store, whatever the other tests run on: bytes are its own."""
    with admission.server() as url:
        yield url


def test_a_unit_at_a_real_worker_costs_no_more_commands() -> None:
    counts = commands()
    assert risen(counts, kept()) == []
    assert all_commands(counts) <= COMMANDS_MAX


def test_a_unit_costs_no_more_bytes_keys_and_function_calls(url: str) -> None:
    assert risen(parts(url), kept()) == []


def test_a_longer_message_is_noticed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Messages._unit

    def longer(*args: Any) -> Any:
        signature = made(*args)
        signature.options["headers"]["more"] = "x" * 100
        return signature

    monkeypatch.setattr(Messages, "_unit", longer)
    assert [line.split(" for each unit")[0][:14] for line in risen(parts(url), kept())] == ["bytes: message"]


@pytest.mark.parametrize("kind", ["HGET", "LPUSH", "record.lua", "never seen before"])
def test_one_command_more_for_each_unit_is_noticed(kind: str) -> None:
    name, before = COMMANDS + kind, kept()
    now: Counts = {**before, name: before.get(name, 0.0) + 1}
    assert [line.split(": ")[1] for line in risen(now, before)] == [kind]


@pytest.mark.parametrize(
    "name, share, noticed",
    [
        ("bytes: message", 1.03, False),
        ("bytes: message", 1.05, True),
        ("function calls: judging", 0.5, False),
        ("function calls: judging", 1.05, True),
        (COMMANDS + IN_SCRIPTS, 1.2, False),
        (COMMANDS + IN_SCRIPTS, 1.3, True),
    ],
)
def test_shares_that_may_be_chance(name: str, share: float, noticed: bool) -> None:
    before = kept()
    assert bool(risen({**before, name: share * before[name]}, before)) is noticed
