"""The two outputs of a command, and how it ends: results go to stdout, all that is said about them to stderr."""

from __future__ import annotations

import sys
import traceback
from enum import IntEnum
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from app.reports.text import printable

MESSAGE_CHARS = 2000


class Exit(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1
    """Some units have no score, the results cannot be had, or the doctor found an error."""
    REFUSED = 2
    """Nothing was done: wrong usage, settings or job, or no store or worker."""
    INTERRUPTED = 3
    """The job was cancelled, or is no longer watched."""


class Refused(Exception):
    """The command cannot do what it is asked for; the message says why and what would help."""


class Terminal:
    """Standard output and error as rich consoles. `secrets` are masked in all that is said."""

    def __init__(self) -> None:
        self.debug = False
        self.secrets: list[str] = []

    @cached_property
    def out(self) -> Console:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does by itself
        return Console(highlight=False)

    @cached_property
    def err(self) -> Console:
        return Console(stderr=True, highlight=False)

    def say(self, message: str, style: str = "") -> None:
        """A line on stderr; texts of jobs, models and errors cannot move the cursor or colour it."""
        for line in self._masked(message).splitlines():
            self.err.print(Text(printable(line, MESSAGE_CHARS), style=style), soft_wrap=not self.err.is_terminal)

    def emit(self, document: str) -> None:
        """A document for other programs on stdout: UTF-8, whatever the terminal speaks."""
        sys.stdout.flush()
        sys.stdout.buffer.write(document.encode() + b"\n")
        sys.stdout.buffer.flush()

    def fail(self, error: BaseException) -> Exit:
        """Say why a command ends. What Dicast itself foresees needs one line; anything else tells where it comes from,
        with `--debug` by its whole traceback."""
        known = foreseen(error)
        if known is not None:
            self.say("dicast: " + "\n  ".join(known.lines), "red")
        elif not self.debug:
            self.say(f"dicast: {_chain(error)}", "red")
            self.say(f"  raised in {_place(error)}; `dicast --debug ...` shows the whole traceback")
        if self.debug:
            self.say("".join(traceback.format_exception(error)))
        return known.code if known is not None else Exit.FAILED

    def _masked(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


class Foreseen(NamedTuple):
    lines: list[str]
    code: Exit = Exit.REFUSED


def foreseen(error: BaseException) -> Foreseen | None:
    """What to say of an error that a person can do something about; None for any other."""
    # Only here, when something has gone wrong: these modules take long to load.
    from kombu.exceptions import OperationalError  # noqa: PLC0415
    from redis.exceptions import RedisError  # noqa: PLC0415

    from app.datasets import DatasetError  # noqa: PLC0415
    from app.jobfile import JobFileError  # noqa: PLC0415
    from app.ledger.client import JobConflict, UnknownJob  # noqa: PLC0415
    from app.providers.base import ProviderFailure  # noqa: PLC0415
    from app.reports.collecting import ResultsAway  # noqa: PLC0415
    from app.reports.files import NoResults  # noqa: PLC0415
    from app.stack import StackError  # noqa: PLC0415
    from app.submission import JobRefused  # noqa: PLC0415
    from app.terminal.following import JobVanished, StoreAway  # noqa: PLC0415
    from app.terminal.refusals import InvalidJob  # noqa: PLC0415
    from config.pools import PoolsError, UnknownPool  # noqa: PLC0415
    from config.settings import SettingsError  # noqa: PLC0415
    from workers.resident import ResidentError  # noqa: PLC0415

    refusals = (
        Refused, SettingsError, PoolsError, UnknownPool, JobFileError, JobRefused, JobConflict, UnknownJob, NoResults,
        ResultsAway, DatasetError, ResidentError, StackError, ProviderFailure,
    )  # fmt: skip
    if isinstance(error, InvalidJob):
        return Foreseen(error.lines)
    if isinstance(error, refusals):
        return Foreseen(str(error).splitlines())
    if isinstance(error, StoreAway | JobVanished):
        return Foreseen([str(error)], Exit.INTERRUPTED)
    if isinstance(error, RedisError | OperationalError):
        return Foreseen([f"the store does not answer: {type(error).__name__}: {error}", "`dicast doctor` tells more"])
    if isinstance(error, OSError) and error.filename is not None:
        return Foreseen([f"{error.filename}: {error.strerror}"])
    return None


def _chain(error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{said}, caused by {_chain(cause)}" if cause is not None else said


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "an unknown place"
