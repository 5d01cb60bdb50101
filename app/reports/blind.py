"""Blind rating by people: the sample to be rated, and the ratings. An acknowledged rating is durable.

    <results>/<job>/rating/queue.jsonl      the dimensions, then an item a line
    <results>/<job>/rating/ratings.jsonl    a rating a line, in the form that `ratings:` of a job reads
    <results>/<job>/rating/notes.jsonl      what raters could not say, and their notes; of a question the last counts
    <results>/<job>/rating/key              a secret, from which the codes follow by which raters know the items
    <results>/<job>/rating/finished.json    the raters who are done: they may see the judges' scores, and rate no more
    <results>/<job>/rating/lock, evaluating locks, held while one of these files is changed or evaluated, in any process

A new rating is appended as one line, which is synced before the rating is acknowledged. A line that a killed server
left incomplete was never acknowledged, and the next rating cuts it off. When a rating is changed or taken back, the
whole file is rewritten.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dicast.app.domain.item import MAX_RATERS
from dicast.app.reports.folders import replacing, sync_folder
from dicast.errors import DicastError, alternatives
from dicast.workers.system.files import make_folder, open_or_create

FOLDER = "rating"
RATINGS_FILE = "ratings.jsonl"
_QUEUE, _FINISHED, _LOCK, _EVALUATING = "queue.jsonl", "finished.json", "lock", "evaluating"
_NOTES, _KEY = "notes.jsonl", "key"
CODE_BYTES = 9
PREFERENCE = "preference"
Key = tuple[str, str, str]
"""Item, dimension, rater."""


class RatingRefused(DicastError, ValueError):
    """A rating or a queue is refused; the message says why."""

    problem = "rating-refused"


class NothingToRate(DicastError, LookupError):
    """The job has no queue of items to be rated."""

    problem = "not-found"


@dataclass(frozen=True, slots=True)
class QueuedItem:
    """An item to be rated: the texts that people are shown, the probability with which it was drawn, if known, and
    whether it is wanted `first`."""

    id: str
    texts: dict[str, Any]
    probability: float | None = None
    first: bool = False

    @property
    def pair(self) -> bool:
        """Whether the item is a pair of texts to be compared."""
        return {"text_a", "text_b"} <= self.texts.keys()


@dataclass(frozen=True, slots=True)
class Note:
    """What a rater has to say of an item in a dimension beside a score: that none can be given, and a text."""

    cannot_say: bool
    text: str


@dataclass(frozen=True, slots=True)
class Queue:
    """The sample to be rated: its items, and the dimensions as plain data (`id`, `min`, `max` and what raters are
    told)."""

    dimensions: list[dict[str, Any]]
    items: list[QueuedItem]

    def is_swapped(self, item: QueuedItem, rater: str) -> bool:
        """Return whether this rater is shown the two texts of a pair in swapped order. The choice is random, but the
        same each time the rater returns. Pairs are never swapped if any dimension is rated in something other than
        preferences."""
        if not item.pair or any(dimension.get("kind") != PREFERENCE for dimension in self.dimensions):
            return False
        return bool(hashlib.blake2b(f"{rater}\0{item.id}\0sides".encode(), digest_size=1).digest()[0] & 1)


class BlindRatings:
    """The ratings of one job, in its folder. Any number of servers may use them at once; each call reads the files.
    Raises OSError where the disk refuses."""

    def __init__(self, job_folder: Path) -> None:
        self._folder = job_folder / FOLDER

    @property
    def file(self) -> Path:
        """The file of ratings, in the form that `ratings:` reads."""
        return self._folder / RATINGS_FILE

    def open_queue(self, queue: Queue) -> None:
        """Put this sample up for rating. It replaces an earlier sample of which nothing has been rated. Raises
        `RatingRefused`."""
        make_folder(self._folder)
        with self._locked():
            if self._read_ratings():
                raise RatingRefused("people have begun to rate this job's sample, which therefore stays as it is")
            with replacing(self._folder / _QUEUE) as out:
                out.write(orjson.dumps(queue.dimensions) + b"\n")
                for item in queue.items:
                    line = {"id": item.id, "texts": item.texts, "probability": item.probability}
                    out.write(orjson.dumps(line | ({"first": True} if item.first else {})) + b"\n")

    def queue(self) -> Queue:
        """Return the sample that is up for rating. Raises `NothingToRate`."""
        try:
            with (self._folder / _QUEUE).open("rb") as file:
                dimensions = orjson.loads(file.readline())
                return Queue(dimensions, [QueuedItem(**orjson.loads(line)) for line in file])
        except FileNotFoundError:
            raise NothingToRate("no sample of this job's items is up for rating yet") from None

    def ratings(self) -> dict[Key, int]:
        """Return all acknowledged ratings."""
        return self._read_ratings() if self._folder.is_dir() else {}

    def finished(self) -> list[str]:
        """Return the raters who are done."""
        try:
            raters: list[str] = orjson.loads((self._folder / _FINISHED).read_bytes())
        except FileNotFoundError:
            return []
        return raters

    def rate(self, item: str, dimension: str, rater: str, score: int | None) -> None:
        """Set a rating, or take it back (`score` None). A preference refers to the item's own A and B, whatever order
        was shown.

        When this returns, the rating survives a crash of the process and a loss of power. Setting the same score again
        changes nothing. Raises `NothingToRate` or `RatingRefused`.
        """
        queue = self.queue()
        queued = _require_queued(queue, item, dimension, score)
        with self._locked():
            if rater in self.finished():
                raise RatingRefused(f"{rater!r} is done with rating and has seen the judges' scores")
            ratings = self._read_ratings()
            previous = ratings.get((item, dimension, rater))
            if score == previous:
                return
            if score is not None and previous is None:
                if rater not in (raters := {key[2] for key in ratings}) and len(raters) >= MAX_RATERS:
                    raise RatingRefused(f"a job has {MAX_RATERS} raters at most")
                _append(self.file, _line(queue, _find_dimension(queue.dimensions, dimension), queued, rater, score))
                return
            ratings.pop((item, dimension, rater))
            if score is not None:
                ratings[item, dimension, rater] = score
            items = {entry.id: entry for entry in queue.items}
            scales = {spec["id"]: spec for spec in queue.dimensions}
            with replacing(self.file) as out:
                for (item_id, dimension_id, rated_by), value in ratings.items():
                    out.write(_line(queue, scales[dimension_id], items[item_id], rated_by, value))

    def codes(self, queue: Queue, rater: str) -> dict[str, QueuedItem]:
        """Return the items of the queue by the codes under which this rater knows them: those wanted first, then the
        others, both in the rater's own order.

        An item's id may name what it is of ("account-081-claude-bot"), and a rater is not to know. The codes are the
        same each time the rater returns, and follow from nothing that a rater knows.
        """
        secret = self._secret()
        items = {
            hashlib.blake2b(f"{rater}\0{item.id}".encode(), key=secret, digest_size=CODE_BYTES).hexdigest(): item
            for item in queue.items
        }
        return dict(sorted(items.items(), key=lambda coded: (not coded[1].first, coded[0])))

    def note(self, item: str, dimension: str, rater: str, note: Note) -> None:
        """Set what a rater says of an item in a dimension beside a score. When this returns, it is on disk. Raises
        `NothingToRate` or `RatingRefused`."""
        _require_queued(self.queue(), item, dimension, None)
        with self._locked():
            if rater in self.finished():
                raise RatingRefused(f"{rater!r} is done with rating and has seen the judges' scores")
            if self.notes().get((item, dimension, rater), Note(cannot_say=False, text="")) == note:
                return
            fields = {"item_id": item, "dimension": dimension, "rater": rater}
            line = orjson.dumps({**fields, "cannot_say": note.cannot_say, "note": note.text}) + b"\n"
            _append(self._folder / _NOTES, line)

    def notes(self) -> dict[Key, Note]:
        """Return what raters could not say, and their notes."""
        try:
            content = (self._folder / _NOTES).read_bytes()
        except FileNotFoundError:
            return {}
        notes: dict[Key, Note] = {}
        for row in map(orjson.loads, content[: _whole_lines(content)].splitlines()):
            notes[row["item_id"], row["dimension"], row["rater"]] = Note(row["cannot_say"], row["note"])
        return {key: note for key, note in notes.items() if note.cannot_say or note.text}

    def _secret(self) -> bytes:
        path = self._folder / _KEY
        with self._locked():
            if not path.exists():
                with replacing(path) as out:
                    out.write(secrets.token_bytes(32))
        return path.read_bytes()

    def finish(self, rater: str) -> None:
        """Record that a rater is done. Raises `RatingRefused` if the rater has rated nothing."""
        with self._locked():
            done = self.finished()
            if rater in done:
                return
            if not any(key[2] == rater for key in self._read_ratings()):
                raise RatingRefused(f"{rater!r} has rated nothing yet")
            with replacing(self._folder / _FINISHED) as out:
                out.write(orjson.dumps([*done, rater]))

    def evaluating(self) -> AbstractContextManager[None]:
        """Lock out other evaluations of the ratings. Rating goes on in the meantime."""
        return self._locked(_EVALUATING)

    @contextmanager
    def _locked(self, name: str = _LOCK) -> Iterator[None]:
        with open_or_create(self._folder / name) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read_ratings(self) -> dict[Key, int]:
        try:
            whole = self.file.read_bytes()
        except FileNotFoundError:
            return {}
        lines = whole[: whole.rfind(b"\n") + 1].splitlines()  # the rest was never acknowledged
        scales = {spec["id"]: spec for spec in self._read_dimensions()}
        ratings: dict[Key, int] = {}
        for row in map(orjson.loads, lines):
            ratings[row["item_id"], row["dimension"], row["rater"]] = _score(scales[row["dimension"]], row["score"])
        return ratings

    def _read_dimensions(self) -> list[dict[str, Any]]:
        with (self._folder / _QUEUE).open("rb") as file:
            dimensions: list[dict[str, Any]] = orjson.loads(file.readline())
        return dimensions


def _append(path: Path, line: bytes) -> None:
    """Append a line to a file, synced. The caller holds the lock."""
    new = not path.exists()
    with open_or_create(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            whole = _whole_lines(path.read_bytes())
            if whole < size:
                file.truncate(whole)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync_folder(path.parent)


def _whole_lines(content: bytes) -> int:
    return content.rfind(b"\n") + 1


def _line(queue: Queue, dimension: dict[str, Any], item: QueuedItem, rater: str, score: int) -> bytes:
    probability = {} if item.probability is None else {"probability": item.probability}
    sides = {"swapped": queue.is_swapped(item, rater)} if item.pair else {}
    fields = {"item_id": item.id, "dimension": dimension["id"], "rater": rater, "score": _written(dimension, score)}
    return orjson.dumps({**fields, **probability, **sides}) + b"\n"


def _written(dimension: dict[str, Any], score: int) -> int | float | str:
    """Return a score in the form in which ratings are given: a label, the share of a checklist's questions that are
    answered with yes, or a number."""
    if dimension["questions"]:
        return round(score / len(dimension["questions"]), 6)
    if dimension["options"]:
        return str(dimension["options"][score - dimension["min"]])
    return score


def _score(dimension: dict[str, Any], written: Any) -> int:
    """Return the score that `_written` turned into this form."""
    if dimension["questions"]:
        return round(float(written) * len(dimension["questions"]))
    if dimension["options"]:
        return int(dimension["min"] + dimension["options"].index(written))
    return int(written)


def _require_queued(queue: Queue, item: str, dimension: str, score: int | None) -> QueuedItem:
    """Return the queued item with this id. Raises `RatingRefused` if it is not in the queue, or if the score is off
    the scale."""
    queued = next((entry for entry in queue.items if entry.id == item), None)
    if queued is None:
        raise RatingRefused(f"item_id: {item[:200]!r} is not in the sample")
    spec = _find_dimension(queue.dimensions, dimension)
    if score is not None and not spec["min"] <= score <= spec["max"]:
        raise RatingRefused(f"score: must be a whole number from {spec['min']} to {spec['max']}, got {score}")
    return queued


def _find_dimension(dimensions: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    for dimension in dimensions:
        if dimension["id"] == name:
            return dimension
    names = alternatives(name, [dimension["id"] for dimension in dimensions])
    raise RatingRefused(f"dimension: {name[:200]!r} is none of the job's{names}")
