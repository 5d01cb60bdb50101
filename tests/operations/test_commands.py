"""Celery's remote commands as Dicast answers them: they take what Celery's own take."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import celery.app.control
import pytest
from celery.worker.control import Panel

from dicast.app.operator.remote_control import OURS, CommandRefused, Control

CELERYS = """
import json
from celery.worker.control import Panel
print(json.dumps({name: [about.type, about.variadic, [name for name, _ in about.args or ()], about.signature]
                  for name, about in Panel.meta.items()}))
"""


def described(about: Any) -> list[Any]:
    return [about.type, about.variadic, [name for name, _ in about.args or ()], about.signature]


def test_commands_take_what_celerys_own_take() -> None:
    celerys = json.loads(subprocess.check_output([sys.executable, "-c", CELERYS], text=True))
    ours = {name: described(Panel.meta[name]) for name in celerys}
    assert ours == celerys


@pytest.mark.parametrize("command, arguments, refused", [
    ("rate_limit", {"task_name": f"{OURS}judge", "rate_limit": "1/s"}, True),
    ("time_limit", {"task_name": f"{OURS}judge", "soft": 1}, True),
    ("rate_limit", {"task_name": "theirs.add", "rate_limit": "1/s"}, False),
    ("time_limit", {"task_name": "theirs.add", "soft": 1}, False),
    ("pool_restart", {}, True), ("election", {}, True), ("revoke_by_stamped_headers", {"headers": {}}, True),
    ("ping", {}, False), ("shutdown", {}, False),
])  # fmt: skip
def test_who_waits_for_no_reply_is_told_by_an_exception_what_is_refused(
    command: str, arguments: dict[str, Any], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, bool]] = []
    monkeypatch.setattr(celery.app.control.Control, "__init__", lambda *_: None)
    monkeypatch.setattr(
        celery.app.control.Control, "broadcast",
        lambda _, command, arguments, destination, connection, reply, *rest: sent.append((command, reply)),
    )  # fmt: skip
    control = Control()
    control.broadcast(command, arguments, reply=True)
    if refused:
        with pytest.raises(CommandRefused):
            control.broadcast(command, arguments)
    else:
        control.broadcast(command, arguments)
    assert sent == [(command, True), *([] if refused else [(command, False)])]
