"""The base of every error that Dicast raises on purpose, and the name that was probably meant where one is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1
    """Some units have no score, the results cannot be had, or the doctor found an error."""
    REFUSED = 2
    """Nothing was done: wrong usage, settings or job, or no store or worker."""
    INTERRUPTED = 3
    """The job was cancelled, or is no longer watched."""
    GATE_FAILED = 4
    """The job has its results, and they do not pass its gate."""
    GATE_UNTOLD = 5
    """Nothing failed the gate, but what it demands cannot be told: no calibration, no ratings, too few items."""


class DicastError(Exception):
    """Something that a person can do something about: the message says what is wrong, and needs no traceback.

    A command that ends with it exits with `exit_code`. `problem` names the kind of error for programs (RFC 9457), in
    lower-case words with hyphens.
    """

    exit_code: ClassVar[Exit] = Exit.REFUSED
    problem: ClassVar[str] = "refused"


ALIKE = 0.65
"""Two letters exchanged in a name of three are just near enough; `api_key` and `max_tokens` are far apart."""
LOOKED_AT = 100
NAMES_SHOWN = 30


def nearest(name: str, known: Iterable[str], *, prefix: str = "") -> str | None:
    """Return the known name that `name` is a slip of, None if none is near: a far guess is worse than none. `prefix` is
    not compared, since all share it."""
    bare = {each.removeprefix(prefix).lower(): each for each in known}
    matches = difflib.get_close_matches(name.removeprefix(prefix)[:LOOKED_AT].lower(), bare, n=1, cutoff=ALIKE)
    return bare[matches[0]] if matches else None


def alternatives(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the name that was probably meant, or those that there are."""
    names = list(known)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return meant(name, names) or f"; there are {', '.join(names[:NAMES_SHOWN]) or 'none'}{more}"


def meant(name: object, known: Iterable[str]) -> str:
    """Return the hint at the name that was probably meant; empty where none is near."""
    near = nearest(str(name), known)
    return f"; did you mean {str(near)!r}?" if near is not None else ""
