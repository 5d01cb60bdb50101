"""A finished job's items, if they are still accessible: stored among its results, or in the file that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dicast.app import datasets
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.ledger.client import UnknownJob
from dicast.app.reports.resuming import kept_items
from dicast.errors import DicastError

if TYPE_CHECKING:
    from dicast.app.application import Dicast

TOGETHER = 500
FORGOTTEN = "the store keeps a job's description for some weeks, and this one's is gone"
NOT_KEPT = "the items came with the job, and its results hold no copy of them"
CHANGED = "the file of the job's items has changed since the job was submitted"


class NoTexts(DicastError, LookupError):
    """A job's items are not accessible; the message says why."""

    problem = "texts-away"


def items_of(dicast: Dicast, job: str, folder: Path) -> Iterator[Item]:
    """Yield all items of a job in their order. Raises `NoTexts`, also during iteration."""
    try:
        yield from kept_items(folder)
        return
    except FileNotFoundError:
        pass
    except (OSError, ValidationError) as error:
        raise NoTexts(f"the job's items cannot be read: {type(error).__name__}") from None
    try:
        spec, mark = dicast.ledger.submitted_job(job)
    except UnknownJob:
        raise NoTexts(FORGOTTEN) from None
    yield from _of_file(spec, mark)


def text_of(dicast: Dicast, job: str, folder: Path, item: str) -> tuple[Item | None, str | None]:
    """Return an item of a job, or None and the reason why it cannot be shown."""
    try:
        match = next((candidate for candidate in items_of(dicast, job, folder) if candidate.id == item), None)
    except NoTexts as error:
        return None, str(error)
    return match, None if match is not None else "it is not among the job's items"


def _of_file(spec: EvaluationJob, mark: str | None) -> Iterator[Item]:
    if not isinstance(spec.items, ItemSource):
        raise NoTexts(NOT_KEPT)
    cursor: dict[str, int] | None = None
    try:
        if mark is not None and datasets.fingerprint(spec.items) != mark:
            raise NoTexts(CHANGED)
        while True:
            page, cursor = datasets.read_page(spec.items, cursor, TOGETHER)
            yield from (item.without(spec.rating_columns) for item in page)
            if cursor is None:
                return
    except datasets.DatasetError:
        raise NoTexts("the file of the job's items cannot be read from here") from None
