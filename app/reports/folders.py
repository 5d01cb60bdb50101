"""The folder of a job's files: one for each id, which is the latest job's of that id; earlier ones' are set aside.

    <results>/<name>/                       the folder of the latest job that has begun
    <results>/<name>/incarnation            which of the jobs of this id that is
    <results>/<name>/run                    how often that job had been resumed when its files last made room
    <results>/<name>/.lock                  held by whoever changes these files, in any process on any machine
    <results>/<name>~<incarnation>/         what an earlier job of the same id had there, whole

`<name>` is the job's id; of one with capital letters or a dot at its end it is the id in lower case with a mark behind
'+' ('MyJob' -> 'myjob+5'), so that ids of different jobs share a folder on no disk, whatever that takes for equal.

Several processes change a job's files: workers, `dicast report`, servers, and whoever was frozen and comes back late.
Each writes what takes long beside, and then, `writing`, looks whether the folder is still that of the run it knows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from dicast.app.domain.text import JobId
from dicast.workers.system.files import create, make_folder, open_or_create


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` at the end of the block, synced. If the block fails, it leaves no trace.

    Only the owner can read the file, unless `private` is false: then its mode follows the umask. A killed writer leaves
    `<name>.<hex>.tmp` beside it. If several writers race, one of their files is there, whole. An OSError, such as that
    of a full disk, names `path`.

    A file appears whole or not at all, and survives a loss of power.
    """
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with create(beside) if private else beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(beside)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_JOB_ID: TypeAdapter[str] = TypeAdapter(JobId)
_INCARNATION = "incarnation"
_RUN = "run"
LOCK = ".lock"
LOCK_WAIT_S, LOCK_LOOK_S = 30.0, 0.02
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""What locking raises on disks that have no locks."""
_UNNAMED = "unnamed-"
"""The prefix of the name for a folder without a mark; no incarnation begins like this."""
_TRIES = 20
_DELETED = ".deleted"
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}
"""What renaming raises when another process was faster."""


def folder_name(text: str) -> str:
    """Return a folder name for ASCII text without '/' or '+'. Different texts have different names, even on disks
    that ignore case or a dot at the end; the name of a lower-case text without such a dot is the text itself."""
    capitals = sum(1 << place for place, char in enumerate(text) if char.isupper())
    return f"{text.lower()}+{capitals:x}" if capitals or text.endswith(".") else text


def job_folder(results_dir: str | Path, job_id: str) -> Path:
    """Return the folder of the latest job of an id, directly inside the results folder. Raises ValueError for an id
    that is no `JobId`."""
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
    """Return the folder of one job among those of the same id. Once another job has begun, this is the folder that
    was set aside."""
    folder = job_folder(results_dir, job_id)
    there = _incarnation_of(folder)
    return folder if there is None or there == incarnation or _is_unnamed(there) else _aside(folder, incarnation)


def begin(results_dir: str | Path, job_id: str, incarnation: str, *, resumed: bool = False) -> Path | None:
    """Give a job the folder of its id, before anything is written there.

    If another job of that id has files there, they are set aside, and the path of the folder set aside is returned. A
    resumed job gets its earlier files back. The function may be killed, called again, and be called by several
    processes at once. Raises OSError.
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
            elif resumed and _is_unnamed(there):  # it ran before folders had marks
                _mark(folder, incarnation)
            else:
                aside = _set_aside(folder, there) or aside
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
    raise OSError(errno.EBUSY, "other jobs of this id keep taking the folder", str(folder))


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of a job's folder.

    Files of an ended job are replaced or removed only within this block, after a check that they are still those of
    the expected run; nothing slow is computed within it. The lock of a process that dies is released. On a disk
    without locks, only the check protects the files.

    Raises FileNotFoundError if there is no such folder, and OSError (EBUSY) if another process holds the lock for
    `LOCK_WAIT_S`.
    """
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        with open_or_create(folder / LOCK) as lock:
            _lock(lock, folder, until)
            if _is_at(lock, folder / LOCK):
                yield
                return


def _lock(lock: IO[bytes], folder: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                message = f"another process has been writing here for {LOCK_WAIT_S:.0f} s"
                raise OSError(errno.EBUSY, message, str(folder)) from None
            time.sleep(LOCK_LOOK_S)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            raise
        else:
            return


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Return whether an open file is still at a path: its folder may have been moved."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def run_of(folder: Path) -> int:
    """Return how often the job had been resumed when the files in its folder last made room for another run."""
    try:
        return int((folder / _RUN).read_text())
    except FileNotFoundError:
        return 0


def mark_run(folder: Path, run: int) -> None:
    """Record that what is written from now on belongs to this run. The caller holds the lock (`writing`)."""
    with replacing(folder / _RUN) as file:
        file.write(str(run).encode())


def _set_aside(folder: Path, incarnation: str) -> Path | None:
    """Move the folder aside if it still belongs to this incarnation. Return its new path, None if another process was
    faster."""
    with writing(folder):
        if _incarnation_of(folder) != incarnation:
            return None
        aside = folder.rename(_aside(folder, incarnation))
    sync_folder(folder.parent)
    return aside


def remove(results_dir: str | Path, job_id: str, unwanted: Callable[[], bool]) -> bool:
    """Remove the folder of the latest job of an id, if it is `unwanted` once the lock is held. Return whether it was
    removed. Raises ValueError for an invalid job id, OSError."""
    folder = job_folder(results_dir, job_id)
    for leftover in folder.parent.glob(f"{folder.name}~*{_DELETED}"):  # left by a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with writing(folder):
            if not unwanted():
                return False
            renamed = folder.rename(folder.with_name(f"{folder.name}~{uuid.uuid4().hex}{_DELETED}"))
    except FileNotFoundError:
        return False
    shutil.rmtree(renamed)
    return True


def earlier_folders(results_dir: str | Path, job_id: str) -> list[Path]:
    """Return the folders of earlier jobs of an id, which were set aside."""
    folder = job_folder(results_dir, job_id)
    return sorted(path for path in folder.parent.glob(f"{folder.name}~*") if not path.name.endswith((_DELETED, ".tmp")))


def _incarnation_of(folder: Path) -> str | None:
    """Return the incarnation that a folder belongs to: a name made from its date if the folder has no mark, None if
    there is no folder or nothing in it."""
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


def _aside(folder: Path, incarnation: str) -> Path:
    """Return the path to which an incarnation's folder is set aside. If that path is taken, another process has set
    the folder aside already."""
    return folder.with_name(f"{folder.name}~{incarnation}")


def _mark(folder: Path, incarnation: str) -> None:
    with replacing(folder / _INCARNATION) as file:
        file.write(incarnation.encode())


def _make(folder: Path, incarnation: str) -> None:
    """Make a job's folder with its mark in it, or bring it back from where it was set aside."""
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
