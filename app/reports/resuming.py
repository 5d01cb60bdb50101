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
    """Keep the items that came with a job; the same again is the same file."""
    folder = own_folder(results_dir, job_id, incarnation)
    folder.mkdir(parents=True, exist_ok=True)  # of a job that ends before it is started there is none
    with replacing(folder / _ITEMS) as file:
        for page in pages:
            file.writelines(item.model_dump_json(exclude_defaults=True).encode() + b"\n" for item in page)


def read_items(results_dir: str | Path, job_id: str, incarnation: str, together: int) -> Iterator[list[Item]]:
    """The items that were kept, in pieces of so many at most; raises FileNotFoundError."""
    with (own_folder(results_dir, job_id, incarnation) / _ITEMS).open("rb") as file:
        yield from pieces(map(Item.model_validate_json, file), together)


def kept_items(folder: Path) -> Iterator[Item]:
    """The items that were kept in a job's folder, one at a time, as they were judged; raises FileNotFoundError."""
    arranged = folder / ARRANGED
    with (arranged if arranged.exists() else folder / _ITEMS).open("rb") as file:
        yield from map(Item.model_validate_json, file)


def set_aside(
    results_dir: str | Path, job_id: str, incarnation: str, *, waits: Callable[[], bool], run: int = 1
) -> None:
    """Move an ended job's opinions and errors to where `earlier` reads them, while the job `waits` to be started: what
    lies there afterwards is the new run's, the `run`-th since its first. May be killed, and called again, and by
    several at once; one that comes late, when that has been done, changes nothing."""
    folder = own_folder(results_dir, job_id, incarnation)
    make_folder(folder)
    with writing(folder):
        if run_of(folder) >= run or not waits():
            return
        make_folder(folder / _EARLIER)
        put_back_parts(folder, incarnation, waits=waits)  # first: where there is a report, they are in the files
        for name in _REMADE:
            (folder / name).unlink(missing_ok=True)
        for name in _KEPT:
            if (folder / name).exists():
                (folder / name).replace(folder / _EARLIER / name)
            (folder / _EARLIER / name).touch()
        mark_run(folder, run)


def earlier(
    results_dir: str | Path, job: JobRecord, lane: Lane, items: Mapping[int, Item], positions: range, offset: int
) -> tuple[dict[int, bytes], int]:
    """The scored results among a run of a lane's positions, as the ledger keeps them, and where the next run begins.

    A lane's opinions stand in the file in the order of its positions up to where it was cancelled, and those of other
    lanes between them. Some may be missing, where a page was damaged: these come without a score. A line of the lane's
    judges that is of none of these units ends the reading.
    """
    found: dict[int, bytes] = {}
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
                found[position] = orjson.dumps({"opinion": opinion})
            if not waiting:
                break
    return found, offset


_Unit = tuple[str, str, str, int, object]


def _expected(job: JobRecord, lane: Lane, items: Mapping[int, Item], position: int) -> _Unit:
    """What the opinion at a lane's position is known by."""
    unit = lane.unit(position)
    item = items[unit.item]
    return job.spec.agents[unit.agent].name, job.spec.dimensions[unit.dimension].id, item.id, unit.replicate, item.probe


def _unit(opinion: Mapping[str, Any]) -> _Unit:
    return tuple(opinion.get(name) for name in ("judge", "criterion_id", "item_id", "replicate", "probe"))  # type: ignore[return-value]
