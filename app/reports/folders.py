"""Where a job's files lie: one folder an id, which is the latest job's of that id; earlier ones' are set aside.

    <results>/<name>/                       the folder of the latest job that has begun
    <results>/<name>/incarnation            which of the jobs of this id that is
    <results>/<name>~<incarnation>/         what an earlier job of the same id had there, whole

`<name>` is the job's id; of one with capital letters or a dot at its end it is the id in lower case with a mark behind
'+' ('MyJob' -> 'myjob+5'), so that ids of different jobs share a folder on no disk, whatever that takes for equal.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import uuid
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dicast.app.domain.fields import JobId
from dicast.app.reports.durable import replacing, sync_folder
from dicast.workers.system.private_files import make_folder

_JOB_ID: TypeAdapter[str] = TypeAdapter(JobId)
_INCARNATION = "incarnation"
_UNNAMED = "unnamed-"
"""Begins what stands for the incarnation of a folder that tells of none; no incarnation begins so."""
_TRIES = 20
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}
"""What renaming raises when somebody else was first."""


def folder_name(text: str) -> str:
    """A name for ASCII text without '/' or '+'. Holds: different texts have different names, even where case, or a dot
    at the end, makes no difference; of lower-case text without such a dot it is the text."""
    capitals = sum(1 << place for place, char in enumerate(text) if char.isupper())
    return f"{text.lower()}+{capitals:x}" if capitals or text.endswith(".") else text


def job_folder(results_dir: str | Path, job_id: str) -> Path:
    """The folder of the latest job of an id, directly inside the results folder; raises ValueError for an id that is no
    `JobId`."""
    try:
        _JOB_ID.validate_python(job_id)
    except ValidationError as error:
        raise ValueError(f"job id {job_id!r} {error.errors()[0]['msg']}") from None
    root = Path(results_dir).resolve()
    folder = root / folder_name(job_id)
    if folder.resolve().parent != root:
        raise ValueError(f"results of job {job_id} would leave {root}")
    return folder


def own_folder(results_dir: str | Path, job_id: str, incarnation: str) -> Path:
    """The folder of one job among those of an id: the one set aside, once another has begun."""
    folder = job_folder(results_dir, job_id)
    there = _incarnation_of(folder)
    return folder if there is None or there == incarnation or _is_unnamed(there) else _aside(folder, incarnation)


def begin(results_dir: str | Path, job_id: str, incarnation: str, *, resumed: bool = False) -> Path | None:
    """Give a job the folder of its id, before anything is written there. What another job of the id has there is set
    aside; returns where, if there was any. May be killed, called again, and by several at once.

    A resumed job gets back what it had there. Raises OSError.
    """
    folder, aside = job_folder(results_dir, job_id), None
    make_folder(folder.parent)
    for _ in range(_TRIES):
        there = _incarnation_of(folder)
        if there == incarnation:
            return aside
        try:
            if there is None:
                _make(folder, incarnation)
            elif resumed and _is_unnamed(there):  # it ran before folders told whose they are
                _mark(folder, incarnation)
            else:
                aside = folder.rename(_aside(folder, there))
                sync_folder(folder.parent)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
    raise OSError(errno.EBUSY, "the folder changes hands all the time", str(folder))


def _incarnation_of(folder: Path) -> str | None:
    """Whose it is; a name made of its date if it does not tell, None where nothing is."""
    mark = folder / _INCARNATION
    with contextlib.suppress(FileNotFoundError):
        return mark.read_text()
    with contextlib.suppress(FileNotFoundError):
        unnamed = f"{_UNNAMED}{folder.stat().st_mtime_ns:x}" if any(folder.iterdir()) else None
        with contextlib.suppress(FileNotFoundError):  # a folder that was made meanwhile has its mark
            return mark.read_text()
        return unnamed
    return None


def _is_unnamed(incarnation: str) -> bool:
    return incarnation.startswith(_UNNAMED)


def _aside(folder: Path, there: str) -> Path:
    """Where what is there goes. Whoever finds it taken was late: what is there now is something else."""
    return folder.with_name(f"{folder.name}~{there}")


def _mark(folder: Path, incarnation: str) -> None:
    with replacing(folder / _INCARNATION) as file:
        file.write(incarnation.encode())


def _make(folder: Path, incarnation: str) -> None:
    """The folder appears with its mark in it, or as it was when it was set aside."""
    earlier = _aside(folder, incarnation)
    if _incarnation_of(earlier) == incarnation:
        earlier.rename(folder)
    else:
        beside = folder.with_name(f"{folder.name}~{uuid.uuid4().hex}.tmp")
        make_folder(beside)
        try:
            _mark(beside, incarnation)
            beside.rename(folder)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    sync_folder(folder.parent)
