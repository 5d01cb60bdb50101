"""The items of a job that are not judged as they lie, in the order in which they are.

<results>/<job>/arranged.jsonl     one `Item` a line
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from dicast.app.domain.arrangement import Arrangement, Chance
from dicast.app.domain.item import Item
from dicast.app.reports.durable import replacing

ARRANGED = "arranged.jsonl"


class OtherItems(ValueError):
    """As many items as were counted at submission do not come out."""


def is_arranged(folder: Path) -> bool:
    """Whether the items of the job whose folder this is are there."""
    return (folder / ARRANGED).exists()


def write_arranged(folder: Path, items: Iterator[Item], arrangement: Arrangement, chance: Chance, total: int) -> None:
    """Put the `items` into the job's folder as they are to be judged, all or none; `total` must come out, else
    `OtherItems` is raised and nothing is written.

    May be killed, called again, and by several at once: they write the same. Memory is 17 bytes an item; the disk holds
    the items twice meanwhile if they are shuffled. Raises OSError when the disk refuses.
    """
    with replacing(folder / ARRANGED) as out:
        if arrangement.shuffle is None and arrangement.vary is None:
            count = sum(out.write(_line(item)) > 0 for item in arrangement.expanded(items))
        else:
            with TemporaryFile(dir=folder) as spool:  # without a name: it is gone with its process
                count = _through(spool, out, items, arrangement, chance)
        if count != total:
            raise OtherItems(f"{count:,} items come out, and {total:,} were counted")


def read_arranged(
    folder: Path, offset: int | None, count: int, most_bytes: float = math.inf
) -> tuple[list[Item], int | None]:
    """Up to `count` (>= 1) items from `offset` (None: the first) on, and where the next page begins; None when nothing
    is left. The item with which the texts reach `most_bytes` is the last. Raises FileNotFoundError."""
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


def _through(
    spool: IO[bytes], out: IO[bytes], items: Iterator[Item], arrangement: Arrangement, chance: Chance
) -> int:  # fmt: skip
    """Write all items to `spool`, then by their places there to `out`; how many."""
    places, groups = array("q", [0]), array("b")
    for item in arrangement.expanded(items):
        places.append(places[-1] + spool.write(_line(item)))
        if arrangement.shuffle is not None:
            groups.append(arrangement.shuffle.group_code(item))
    spool.flush()
    own = len(places) - 1
    for at in arrangement.shuffle.order(groups, chance) if arrangement.shuffle is not None else range(own):
        out.write(_at(spool, places, at))
    varied = 0
    if arrangement.vary is not None:
        for at in arrangement.vary.chosen(own):
            for variant in arrangement.vary.variants(Item.model_validate_json(_at(spool, places, at)), at, own):
                varied += out.write(_line(variant)) > 0
    return own + varied


def _at(spool: IO[bytes], places: Sequence[int], at: int) -> bytes:
    return os.pread(spool.fileno(), places[at + 1] - places[at], places[at])


def _line(item: Item) -> bytes:
    return item.model_dump_json(exclude_defaults=True).encode() + b"\n"
