"""Checks the files of a job before it is accepted: every row is an item or a rating, and each is present once.

An item's id must not come twice. A rating must be on its scale, and of an item of the job.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from dicast.app.datasets.pages import fingerprint, limited, opened
from dicast.app.datasets.ratings import INLINE, file_of, read_ratings
from dicast.app.datasets.tables import DatasetError, HealthBench, ItemReader, quoted
from dicast.app.domain.item import MAX_RATERS, Item, ItemSource, RatingCounts
from dicast.app.domain.job import EvaluationJob
from dicast.errors import nearest


@dataclass(frozen=True, slots=True)
class Survey:
    """The facts about an item file. `text_bytes` is the sum over texts, prompts and references in UTF-8; `left_out`
    counts rows of HealthBench's form that have no answer."""

    items: int
    text_bytes: int
    fingerprint: str
    item_ids: KnownItems
    left_out: int = 0


class KnownItems:
    """Tells whether an id is one of a data set's items.

    For ids in a file it stores digests of 64 bits, so it takes a foreign id for a known one in one case of 10^12 if
    there are a million.
    """

    def __init__(self, ids: Iterable[str] = (), *, digests: array[int] | None = None, numbered: int = 0) -> None:
        self._ids, self._digests, self._numbered = frozenset(ids), digests, numbered

    def has(self, item_id: str) -> bool:
        """Return whether it is one of the items' ids."""
        if self._digests is not None:
            digest = _digest(item_id)
            at = bisect_left(self._digests, digest)
            return at < len(self._digests) and self._digests[at] == digest
        if self._numbered:
            plain = item_id.isascii() and item_id.isdigit() and item_id[0] != "0"
            return plain and len(item_id) < 20 and int(item_id) <= self._numbered
        return item_id in self._ids


def survey(
    source: ItemSource, *, most: int | None = None, max_text_bytes: int | None = None,
    keep: Mapping[str, str] | Collection[str] = (),
    misfit: Callable[[Item], str | None] = lambda item: None, visit: Callable[[Item], None] | None = None,
) -> Survey:  # fmt: skip
    """Read every item once, or the first `most`, and pass each to a callback.

    Raises `DatasetError` for the first item that is wrong, too large, has a duplicate id, or is a `misfit` (which
    returns why), and for metadata to `keep` that no item has. A mapping gives, for each name of metadata, the job's
    field that needs it.

    Ids are compared by digests of 64 bits, 8 bytes per item in memory (24 while they are sorted); items with equal
    digests are read again and compared as they are, so that the answer is exact.
    """
    before = fingerprint(source)
    digests = array("Q")
    items = text_bytes = 0
    unseen = dict(keep) if isinstance(keep, Mapping) else dict.fromkeys(keep, "keep")
    with opened(source) as table:
        reader = ItemReader(source, table)
        for row in limited(source, table, None):
            item = reader.item(row)
            items += 1
            if (why := misfit(item)) is not None:
                raise DatasetError(source.path, f"the item {quoted(item.id)} {why}", place=row.place)
            for name in [name for name in unseen if name in item.metadata]:
                del unseen[name]
            size = item.text_bytes
            if max_text_bytes is not None and size > max_text_bytes:
                problem = f"the item {quoted(item.id)} holds {size} bytes of text, at most {max_text_bytes} are allowed"
                raise DatasetError(source.path, problem, place=row.place)
            text_bytes += size
            if visit is not None:
                visit(item)
            if not reader.numbered:
                digests.append(_digest(item.id))
            if items == most:
                break
    if unseen and items:
        columns = ", ".join(quoted(column) for column in table.columns)
        name, field = next(iter(unseen.items()))
        near = nearest(name, table.columns)
        hint = f"did you mean {quoted(near)}?" if near is not None else f"there are {columns}"
        raise DatasetError(source.path, f"{field}: no item has {quoted(name)} besides its texts; {hint}")
    suspects = repeated(digests)
    if suspects:
        _compare(source, suspects)
    if fingerprint(source) != before:
        raise DatasetError(source.path, "changed while it was read")
    ids = KnownItems(numbered=items) if reader.numbered else KnownItems(digests=digests)
    return Survey(items, text_bytes, before, ids, table.left_out if isinstance(table, HealthBench) else 0)


def _digest(item_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(item_id.encode(), digest_size=8).digest(), "little")


def repeated(digests: array[int]) -> set[int]:
    """Return the digests that occur more than once, and sort `digests` in place."""
    import pyarrow as pa  # noqa: PLC0415  takes long to load
    import pyarrow.compute as pc  # noqa: PLC0415

    if len(digests) < 2:
        return set()
    values = pa.Array.from_buffers(pa.uint64(), len(digests), [None, pa.py_buffer(digests)])
    values = values.take(pc.array_sort_indices(values))
    digests[:] = array("Q", values.buffers()[1].to_pybytes())
    return set(values[1:].filter(pc.equal(values[1:], values[:-1])).to_pylist())


def _compare(source: ItemSource, suspects: set[int]) -> None:
    places: dict[str, str] = {}
    with opened(source) as table:
        reader = ItemReader(source, table)
        for row in limited(source, table, None):
            item = reader.item(row)
            if _digest(item.id) not in suspects:
                continue
            if item.id in places:
                problem = f"{source.id_field}: {quoted(item.id)} is already in {places[item.id]}"
                raise DatasetError(source.path, problem, place=row.place)
            places[item.id] = row.place


def survey_ratings(job: EvaluationJob, items: KnownItems) -> tuple[RatingCounts, str | None]:
    """Read every rating once; return the counts, and the fingerprint of the ratings' own file.

    Raises `DatasetError` for the first rating that is wrong, for an item that is not the job's, and for two ratings by
    one person of the same thing. If the job has a `limit` on its items, ratings of other items are skipped.

    It takes 8 bytes of memory per rating (24 while they are sorted); ratings with equal digests are read again.
    """
    assert job.ratings is not None
    own_file = file_of(job.ratings) if job.ratings.path is not None else None
    before = fingerprint(own_file) if own_file is not None else None
    path, raters = _path(job), set[str]()
    limited = isinstance(job.items, ItemSource) and job.items.limit is not None
    ratings, rated = array("Q"), array("Q")
    for rating, place in read_ratings(job):
        if job.pairs is None and not items.has(rating.item_id):
            if limited:
                continue
            raise DatasetError(path, f"the item {quoted(rating.item_id)} is none of the job's", place=place)
        raters.add(rating.rater)
        if len(raters) > MAX_RATERS:
            raise DatasetError(
                path, f"has more than {MAX_RATERS} raters: name an item's ratings 1, 2, 3, ...", place=place
            )
        ratings.append(_rating_digest(rating.item_id, rating.dimension, rating.rater))
        rated.append(_rating_digest(rating.item_id))
    if not ratings and not limited:
        raise DatasetError(path, "holds no ratings: all cells are empty, or there is no row")
    suspects = repeated(ratings)
    if suspects:
        _compare_ratings(job, path, suspects)
    if own_file is not None and fingerprint(own_file) != before:
        raise DatasetError(path, "changed while it was read")
    return RatingCounts(len(ratings), _distinct(rated), tuple(sorted(raters))), before


def _path(job: EvaluationJob) -> str:
    assert job.ratings is not None
    return job.ratings.path or (job.items.path if isinstance(job.items, ItemSource) else INLINE)


def _rating_digest(*names: str) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest(), "little")


def _distinct(digests: array[int]) -> int:
    import pyarrow as pa  # noqa: PLC0415  takes long to load
    import pyarrow.compute as pc  # noqa: PLC0415

    if not digests:
        return 0
    values = pa.Array.from_buffers(pa.uint64(), len(digests), [None, pa.py_buffer(digests)])
    return int(pc.count_distinct(values).as_py())


def _compare_ratings(job: EvaluationJob, path: str, suspects: set[int]) -> None:
    places: dict[tuple[str, str, str], str] = {}
    for rating, place in read_ratings(job):
        key = rating.key
        if _rating_digest(*key) not in suspects:
            continue
        if key in places:
            whose = f"{quoted(rating.rater)} has rated {quoted(rating.item_id)} in {quoted(rating.dimension)}"
            raise DatasetError(path, f"{whose} already in {places[key]}", place=place)
        places[key] = place
