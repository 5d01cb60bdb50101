"""The two outputs of a command: results go to stdout, and all messages about them to stderr.

rich is imported with the first message, so that `--help`, which needs none of it, answers at once. The options that
several commands have are declared here, too.
"""

from __future__ import annotations

import sys
import traceback
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dicast.errors import DicastError, Exit

if TYPE_CHECKING:
    from rich.console import Console

# ruff: noqa: PLC0415  (see above)


MESSAGE_CHARS = 2000


class Refused(DicastError):
    """The command cannot do what was asked; the message says why and what would help."""


class Terminal:
    """Standard output and error as rich consoles. `secrets` are masked in all messages."""

    def __init__(self) -> None:
        self.debug = False
        self.secrets: list[str] = []

    @cached_property
    def out(self) -> Console:
        from rich.console import Console

        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does by itself
        return Console(highlight=False)

    @cached_property
    def err(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def say(self, message: str, style: str = "") -> None:
        """Print a message on stderr. Texts of jobs, models and errors cannot move the cursor or colour it."""
        from rich.text import Text

        from dicast.app.domain.text import printable

        for line in self._masked(message).splitlines():
            self.err.print(Text(printable(line, MESSAGE_CHARS), style=style), soft_wrap=not self.err.is_terminal)

    def emit(self, document: str) -> None:
        """Write a document for other programs to stdout, in UTF-8 whatever the terminal's encoding."""
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(document.encode() + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self.out.on_broken_pipe()  # ends the process, as it does when a table is cut short

    def fail(self, error: BaseException) -> Exit:
        """Print why a command failed, and return its exit code. An expected error takes one line; any other names its
        place in the code or, with `--debug`, comes with its traceback."""
        expected = expected_error(error)
        if expected is not None:
            self.say("dicast: " + "\n  ".join(expected.lines), "red")
        elif not self.debug:
            self.say(f"dicast: {_chain(error)}", "red")
            self.say(f"  raised in {_place(error)}; `dicast --debug ...` shows the whole traceback")
        if self.debug:
            self.say("".join(traceback.format_exception(error)))
        return expected.code if expected is not None else Exit.FAILED

    def _masked(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


class ExpectedError(NamedTuple):
    lines: list[str]
    code: Exit = Exit.REFUSED


STORE_TROUBLE = {"redis.exceptions.RedisError", "kombu.exceptions.OperationalError"}
"""Errors of the store, by name: their modules take long to load, and one that is not loaded has raised nothing."""


def expected_error(error: BaseException) -> ExpectedError | None:
    """Return what to say of an error that a person can do something about, None for any other error."""
    if isinstance(error, DicastError):
        return ExpectedError(str(error).splitlines(), error.exit_code)
    if {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__} & STORE_TROUBLE:
        return ExpectedError(
            [f"the store does not answer: {type(error).__name__}: {error}", "`dicast doctor` tells more"]
        )
    if isinstance(error, OSError) and error.filename is not None:
        return ExpectedError([f"{error.filename}: {error.strerror}"])
    return None


def _chain(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{text}, caused by {_chain(cause)}" if cause is not None else text


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "an unknown place"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Watch = Annotated[bool, typer.Option("--watch", help="Renew the output each second, until Ctrl-C.")]
