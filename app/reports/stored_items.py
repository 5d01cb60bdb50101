"""What is stored in a job's folder beside its results: items as they are judged, people's ratings, and images.

    <results>/<job>/arranged.jsonl            one `Item` a line: the items, if they are judged in another order or form
                                              than they lie in their source
    <results>/<job>/ratings.jsonl             one `Rating` a line: those that the job was started with, and those that
                                              were added after it ended
    <results>/<job>/ratings.submitted.jsonl   the former alone, once any were added; empty if there were none
    <results>/<job>/images/<SHA-256>          the bytes of an image, each stored once, as it was when the job started

The last functions are for a job that goes on after its end: it needs its items, and the results that its units have
already.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import orjson
from pydantic import ValidationError

from dicast.app.domain.arrangement import Arrangement, Chance
from dicast.app.domain.image import DIGEST_PREFIX
from dicast.app.domain.item import Item, Rating
from dicast.app.domain.plan import Lane, pieces
from dicast.app.ledger.records import JobRecord
from dicast.app.reports.files import put_back_parts
from dicast.app.reports.folders import mark_run, own_folder, replacing, run_of, writing
from dicast.workers.system.files import make_folder

ARRANGED = "arranged.jsonl"


class ItemCountMismatch(ValueError):
    """The source no longer yields as many items as were counted at submission."""


def is_arranged(folder: Path) -> bool:
    """Return whether the job in this folder has a file of arranged items."""
    return (folder / ARRANGED).exists()


def write_arranged(folder: Path, items: Iterator[Item], arrangement: Arrangement, chance: Chance, total: int) -> None:
    """Write the `items` into the job's folder in the order and form in which they are judged, all or none.

    If another number than `total` comes out, nothing is written and `ItemCountMismatch` is raised.

    The function may be killed, called again, and be called by several processes at once: all write the same file. It
    takes 17 bytes of memory an item; if the items are shuffled, the disk holds them twice in the meantime. Raises
    OSError when the disk refuses.
    """
    with replacing(folder / ARRANGED) as out:
        if arrangement.shuffle is None and arrangement.vary is None:
            count = sum(out.write(_line(item)) > 0 for item in arrangement.expanded(items))
        else:
            with TemporaryFile(dir=folder) as spool:  # without a name: it is gone with its process
                count = _write_via_spool(spool, out, items, arrangement, chance)
        if count != total:
            raise ItemCountMismatch(f"{count:,} items come out, and {total:,} were counted")


def read_arranged(
    folder: Path, offset: int | None, count: int, most_bytes: float = math.inf
) -> tuple[list[Item], int | None]:
    """Return up to `count` (>= 1) items from `offset` on (None: from the first), and the offset of the next page,
    None if no items are left. A page ends early with the item that brings its texts to `most_bytes`. Raises
    FileNotFoundError."""
    items: list[Item] = []
    size = 0
    with (folder / ARRANGED).open("rb") as file:
        file.seek(offset or 0)
        for line in iter(file.readline, b""):
            items.append(Item.model_validate_json(line))
            size += items[-1].text_bytes
            if len(items) == count or size >= most_bytes:
                at = file.tell()
                return items, at if file.read(1) else None
    return items, None


def _write_via_spool(
    spool: IO[bytes], out: IO[bytes], items: Iterator[Item], arrangement: Arrangement, chance: Chance
) -> int:  # fmt: skip
    """Write all items to `spool`, copy them to `out` in their final order, and return how many there are."""
    offsets, groups = array("q", [0]), array("b")
    for item in arrangement.expanded(items):
        offsets.append(offsets[-1] + spool.write(_line(item)))
        if arrangement.shuffle is not None:
            groups.append(arrangement.shuffle.group_code(item))
    spool.flush()
    item_count = len(offsets) - 1
    for at in arrangement.shuffle.order(groups, chance) if arrangement.shuffle is not None else range(item_count):
        out.write(_read_spooled(spool, offsets, at))
    varied = 0
    if arrangement.vary is not None:
        for at in arrangement.vary.chosen(item_count):
            for variant in arrangement.vary.variants(
                Item.model_validate_json(_read_spooled(spool, offsets, at)), at, item_count
            ):
                varied += out.write(_line(variant)) > 0
    return item_count + varied


def _read_spooled(spool: IO[bytes], offsets: Sequence[int], index: int) -> bytes:
    return os.pread(spool.fileno(), offsets[index + 1] - offsets[index], offsets[index])


def _line(item: Item) -> bytes:
    return item.model_dump_json(exclude_defaults=True).encode() + b"\n"


RATINGS = "ratings.jsonl"
SUBMITTED = "ratings.submitted.jsonl"


@dataclass(frozen=True, slots=True)
class RatingsChange:
    """The complete ratings that a job is to have. With `added`, some were added after the job ended, and those that
    it was started with are stored separately; otherwise these are all."""

    ratings: Sequence[Rating]
    added: bool

    def apply(self, folder: Path) -> None:
        """Write the ratings into a folder that the caller is `changing` (files.py). Raises OSError."""
        if self.added and not (folder / SUBMITTED).exists():
            _write(folder / SUBMITTED, read_ratings(folder))
        if self.ratings:
            _write(folder / RATINGS, self.ratings)
        else:
            (folder / RATINGS).unlink(missing_ok=True)
        if not self.added:
            (folder / SUBMITTED).unlink(missing_ok=True)


def keeps_ratings(results_dir: str | Path, job_id: str, incarnation: str) -> bool:
    """Return whether the job has ratings."""
    return (own_folder(results_dir, job_id, incarnation) / RATINGS).exists()


def write_ratings(results_dir: str | Path, job_id: str, incarnation: str, ratings: Iterable[Rating]) -> None:
    """Write the ratings, all or none; only one at a time is in memory."""
    _write(own_folder(results_dir, job_id, incarnation) / RATINGS, ratings)


def _write(path: Path, ratings: Iterable[Rating]) -> None:
    with replacing(path) as file:
        file.writelines(orjson.dumps(rating) + b"\n" for rating in ratings)


def submitted_ratings(folder: Path) -> list[Rating] | None:
    """Return the ratings that the job was started with if others were added since, else None."""
    return list(read_ratings(folder, SUBMITTED)) if (folder / SUBMITTED).exists() else None


def read_ratings(folder: Path, name: str = RATINGS) -> Iterator[Rating]:
    """Yield the ratings in a job's folder; none if there is no such file."""
    try:
        with (folder / name).open("rb") as file:
            for line in file:
                yield Rating(**orjson.loads(line))
    except FileNotFoundError:
        return


_FOLDER = "images"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def keep_image(folder: Path, data: bytes) -> str:
    """Store an image in the folder of a job, unless it is there, and return the reference that an item has in its
    place. May be killed, called again, and be called by several processes at once. Raises OSError."""
    digest = hashlib.sha256(data).hexdigest()
    path = folder / _FOLDER / digest
    if not path.exists():
        make_folder(path.parent)
        with replacing(path) as file:
            file.write(data)
    return f"{DIGEST_PREFIX}{digest}"


def kept_image(folder: Path, reference: str) -> bytes:
    """Return the bytes of a stored image. Raises OSError if it is gone, ValueError if its bytes have changed."""
    digest = reference.removeprefix(DIGEST_PREFIX)
    if not _DIGEST.fullmatch(digest):
        raise ValueError("it has no digest")
    data = (folder / _FOLDER / digest).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("its bytes have changed")
    return data


ITEMS = "items.jsonl"
_EARLIER = "earlier"
_KEPT = ("opinions.jsonl", "errors.jsonl")
_REMADE = ("report.json", "opinions.parquet", "panel.parquet", "probes.parquet", "report.html", "run.lock")


def write_items(results_dir: str | Path, job_id: str, incarnation: str, pages: Iterable[Sequence[Item]]) -> None:
    """Store the items that came with a job. Writing the same items again gives the same file."""
    folder = own_folder(results_dir, job_id, incarnation)
    folder.mkdir(parents=True, exist_ok=True)  # a job that ends before it is started has none
    with replacing(folder / ITEMS) as file:
        for page in pages:
            file.writelines(item.model_dump_json(exclude_defaults=True).encode() + b"\n" for item in page)


def read_items(results_dir: str | Path, job_id: str, incarnation: str, together: int) -> Iterator[list[Item]]:
    """Yield the stored items in chunks of at most `together`. Raises FileNotFoundError."""
    with (own_folder(results_dir, job_id, incarnation) / ITEMS).open("rb") as file:
        yield from pieces(map(Item.model_validate_json, file), together)


def kept_items(folder: Path) -> Iterator[Item]:
    """Yield the items stored in a job's folder one at a time, as they were judged. Raises FileNotFoundError."""
    arranged = folder / ARRANGED
    with (arranged if arranged.exists() else folder / ITEMS).open("rb") as file:
        yield from map(Item.model_validate_json, file)


def kept_texts(folder: Path, names: Collection[str]) -> dict[str, list[tuple[str, str]]]:
    """Return what was judged of these items, as (what it is, text), as far as the job's folder holds it."""
    texts: dict[str, list[tuple[str, str]]] = {}
    with suppress(OSError, ValidationError):
        for item in kept_items(folder) if names else ():
            if item.id in names and item.probe is None:
                texts[item.id] = _texts_of(item)
                if len(texts) == len(names):
                    break
    return texts


def _texts_of(item: Item) -> list[tuple[str, str]]:
    fields = (
        ("prompt", item.prompt), ("text", item.text), ("text A", item.text_a), ("text B", item.text_b),
        ("reference", item.reference),
    )  # fmt: skip
    turns = [(turn.role, turn.content or "") for turn in item.messages or ()]
    return [(name, text) for name, text in (*fields, *turns) if text]


def set_aside(
    results_dir: str | Path, job_id: str, incarnation: str, *, waits: Callable[[], bool], run: int = 1
) -> None:
    """Move an ended job's opinions and errors to the folder `earlier`, while the job `waits` to be started. All
    files written afterwards belong to the new run, the `run`-th since the first.

    The function may be killed and called again, and be called by several processes at once; a late call changes
    nothing.
    """
    folder = own_folder(results_dir, job_id, incarnation)
    make_folder(folder)
    with writing(folder):
        if run_of(folder) >= run or not waits():
            return
        make_folder(folder / _EARLIER)
        put_back_parts(folder, incarnation, waits=waits)  # first, because it needs to see whether there is a report
        for name in _REMADE:
            (folder / name).unlink(missing_ok=True)
        for name in _KEPT:
            if (folder / name).exists():
                (folder / name).replace(folder / _EARLIER / name)
            (folder / _EARLIER / name).touch()
        mark_run(folder, run)


def earlier_results(
    results_dir: str | Path, job: JobRecord, lane: Lane, items: Mapping[int, Item], positions: range, offset: int
) -> tuple[dict[int, bytes], int]:
    """Return the earlier scored results among a range of a lane's positions, in the ledger's form, and the offset at
    which the next range begins.

    The file has a lane's opinions in the order of its positions, up to where the job was cancelled, with those of
    other lanes in between. Some may be missing because a page was damaged: their units are judged again. Reading ends
    at the first opinion of the lane's judges that belongs to none of these units.
    """
    scored: dict[int, bytes] = {}
    names = {job.spec.agents[agent].name for agent in lane.agents}
    waiting = {_expected(job, lane, items, position): position for position in positions}
    with (own_folder(results_dir, job.id, job.incarnation) / _EARLIER / _KEPT[0]).open("rb") as file:
        file.seek(offset)
        for line in iter(file.readline, b"") if waiting else ():
            opinion = orjson.loads(line)
            if opinion["judge"] not in names:
                continue
            position = waiting.pop(_unit(opinion), None)
            if position is None:
                break
            offset = file.tell()
            if opinion["score"] is not None:
                scored[position] = orjson.dumps({"opinion": opinion})
            if not waiting:
                break
    return scored, offset


_Unit = tuple[str, str, str, int, object]


def _expected(job: JobRecord, lane: Lane, items: Mapping[int, Item], position: int) -> _Unit:
    """Return what identifies the opinion at a lane's position."""
    unit = lane.unit(position)
    item = items[unit.item]
    return job.spec.agents[unit.agent].name, job.spec.dimensions[unit.dimension].id, item.id, unit.replicate, item.probe


def _unit(opinion: Mapping[str, Any]) -> _Unit:
    return tuple(opinion.get(name) for name in ("judge", "criterion_id", "item_id", "replicate", "probe"))  # type: ignore[return-value]
