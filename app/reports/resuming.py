"""What a job needs to go on after its end: its items, and the results that its units have already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from dicast.app.domain.item import Item
from dicast.app.domain.pieces import pieces
from dicast.app.domain.plan import Lane
from dicast.app.ledger.records import JobRecord
from dicast.app.reports.arranged import ARRANGED
from dicast.app.reports.durable import replacing
from dicast.app.reports.files import put_back_parts
from dicast.app.reports.folders import mark_run, own_folder, run_of, writing
from dicast.workers.system.private_files import make_folder

_ITEMS = "items.jsonl"
_EARLIER = "earlier"
_KEPT = ("opinions.jsonl", "errors.jsonl")
_REMADE = ("report.json", "opinions.parquet", "panel.parquet", "probes.parquet", "report.html")


def write_items(results_dir: str | Path, job_id: str, incarnation: str, pages: Iterable[Sequence[Item]]) -> None:
    """Store the items that came with a job. Writing the same items again gives the same file."""
    folder = own_folder(results_dir, job_id, incarnation)
    folder.mkdir(parents=True, exist_ok=True)  # a job that ends before it is started has none
    with replacing(folder / _ITEMS) as file:
        for page in pages:
            file.writelines(item.model_dump_json(exclude_defaults=True).encode() + b"\n" for item in page)


def read_items(results_dir: str | Path, job_id: str, incarnation: str, together: int) -> Iterator[list[Item]]:
    """Yield the stored items in chunks of at most `together`. Raises FileNotFoundError."""
    with (own_folder(results_dir, job_id, incarnation) / _ITEMS).open("rb") as file:
        yield from pieces(map(Item.model_validate_json, file), together)


def kept_items(folder: Path) -> Iterator[Item]:
    """Yield the items stored in a job's folder one at a time, as they were judged. Raises FileNotFoundError."""
    arranged = folder / ARRANGED
    with (arranged if arranged.exists() else folder / _ITEMS).open("rb") as file:
        yield from map(Item.model_validate_json, file)


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
