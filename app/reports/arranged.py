"""The items of a job that are judged in another order or form than they lie in their source, as they are judged.

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
