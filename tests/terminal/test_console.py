from __future__ import annotations

import importlib

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError

from dicast.app.cli.console import STORE_TROUBLE, Refused, Terminal
from dicast.app.domain.refusals import InvalidJob
from dicast.app.ledger.client import UnknownJob
from dicast.errors import Exit


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


def failed(error: Exception, capsys: pytest.CaptureFixture[str], *, debug: bool = False) -> tuple[Exit, str]:
    terminal = Terminal()
    terminal.debug, terminal.secrets = debug, ["sesame-street"]
    code = terminal.fail(error)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "sesame" not in captured.err
    return code, captured.err


@pytest.mark.parametrize(
    "error, said",
    [
        (UnknownJob("x"), "dicast: no job 'x'\n"),
        (Refused("not\nso"), "dicast: not\n  so\n"),
        (InvalidJob(["a: b", "c: d"]), "dicast: a: b\n  c: d\n"),
        (Refused("[red]x[/red] \x1b[2J"), "dicast: [red]x[/red] \\x1b[2J\n"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "dicast: /x: No such file or directory\n"),
        (StoreConnectionError("password sesame-street"),
         "dicast: the store does not answer: ConnectionError: password ***\n  `dicast doctor` tells more\n"),
    ],
)  # fmt: skip
def test_what_is_foreseen_is_said_in_a_line(error: Exception, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert failed(raised(error), capsys) == (Exit.REFUSED, said)


@pytest.mark.parametrize("name", sorted(STORE_TROUBLE))
def test_errors_are_still_called_that(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), kind), Exception)


def test_what_is_not_foreseen_keeps_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = failed(raised(KeyError("k"), ValueError("sesame-street")), capsys)
    assert code is Exit.FAILED
    first, second = said.splitlines()
    assert first == "dicast: KeyError: 'k', caused by ValueError: ***"
    assert second.startswith("  raised in test_console.py, line ")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = failed(raised(KeyError("k"), ValueError("sesame-street")), capsys, debug=True)
    assert code is Exit.FAILED
    assert "Traceback (most recent call last)" in said
    assert "ValueError: ***" in said
