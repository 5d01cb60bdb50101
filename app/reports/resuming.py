"""What a job needs to go on after its end: its items, and the results that its units have already."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from dicast.app.domain.item import Item
from dicast.app.domain.pieces import pieces
from dicast.app.domain.plan import Lane
from dicast.app.ledger.records import JobRecord
from dicast.app.reports.arranged import ARRANGED
from dicast.app.reports.durable import replacing
from dicast.app.reports.folders import own_folder
from dicast.workers.system.private_files import make_folder

_ITEMS = "items.jsonl"
_EARLIER = "earlier"
_KEPT = ("opinions.jsonl", "errors.jsonl")
_REMADE = ("report.json", "opinions.parquet", "panel.parquet", "probes.parquet", "report.html")


def write_items(results_dir: str | Path, job_id: str, incarnation: str, pages: Iterable[Sequence[Item]]) -> None:
    """Keep the items that came with a job; the same again is the same file."""
    with replacing(own_folder(results_dir, job_id, incarnation) / _ITEMS) as file:
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


def set_aside(results_dir: str | Path, job_id: str, incarnation: str, *, waits: Callable[[], bool]) -> None:
    """Move an ended job's opinions and errors to where `earlier` reads them, while the job `waits` to be started: what
    lies there afterwards is the new run's. May be killed, and called again, and by several at once."""
    folder = own_folder(results_dir, job_id, incarnation)
    if waits():
        make_folder(folder / _EARLIER)
    for name in _REMADE:
        if (folder / name).exists() and waits():
            (folder / name).unlink(missing_ok=True)
    for name in _KEPT:
        if (folder / name).exists() and waits():
            with contextlib.suppress(FileNotFoundError):  # another was quicker
                (folder / name).replace(folder / _EARLIER / name)
        if waits():
            (folder / _EARLIER / name).touch()


def earlier(
    results_dir: str | Path, job: JobRecord, lane: Lane, items: Mapping[int, Item], positions: range, offset: int
) -> tuple[dict[int, bytes], int]:
    """The scored results among a run of a lane's positions, as the ledger keeps them, and where the next run begins.

    A lane's opinions stand in the file in the order of its positions, without gaps up to where it was cancelled, and
    those of other lanes between them; a line that is not of the unit that should stand there ends the reading.
    """
    found: dict[int, bytes] = {}
    names = {job.spec.agents[agent].name for agent in lane.agents}
    waiting = iter(positions)
    with (own_folder(results_dir, job.id, job.incarnation) / _EARLIER / _KEPT[0]).open("rb") as file:
        file.seek(offset)
        for line in iter(file.readline, b""):
            opinion = orjson.loads(line)
            if opinion["judge"] not in names:
                continue
            position = next(waiting, None)
            if position is None:
                break
            unit = lane.unit(position)
            expected = {
                "judge": job.spec.agents[unit.agent].name,
                "criterion_id": job.spec.dimensions[unit.dimension].id,
                "item_id": items[unit.item].id,
                "replicate": unit.replicate,
                "probe": items[unit.item].probe,
            }
            if any(opinion.get(name) != value for name, value in expected.items()):
                break
            offset = file.tell()
            if opinion["score"] is not None:
                found[position] = orjson.dumps({"opinion": opinion})
    return found, offset
