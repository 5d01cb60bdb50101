"""Checks all ratings before a job is accepted: each is on its scale, of an item of the job, and present once."""

from __future__ import annotations

import hashlib
from array import array

from dicast.app.datasets.errors import DatasetError, quoted
from dicast.app.datasets.pages import fingerprint
from dicast.app.datasets.ratings import INLINE, file_of, read_ratings
from dicast.app.datasets.surveying import KnownItems, repeated
from dicast.app.domain.item import ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.rating import MAX_RATERS, Rating, RatingCounts


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
        key = _key(rating)
        if _rating_digest(*key) not in suspects:
            continue
        if key in places:
            whose = f"{quoted(rating.rater)} has rated {quoted(rating.item_id)} in {quoted(rating.dimension)}"
            raise DatasetError(path, f"{whose} already in {places[key]}", place=place)
        places[key] = place


def _key(rating: Rating) -> tuple[str, str, str]:
    return rating.item_id, rating.dimension, rating.rater
