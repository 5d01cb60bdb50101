"""Checks before a job is accepted that its items' images can be used, and that all of its judges can see images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dicast.app import datasets
from dicast.app.domain.image import Image
from dicast.app.domain.item import Item, ItemSource, JudgedKind
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.refusals import JobRefused
from dicast.config.pools import PoolSpec

MAX_INLINE_BYTES = 50_000_000
"""The most bytes of images that come as data with the job itself: until it starts, the store holds them."""


class ItemInspector:
    """Collects the kinds and checks the images of a job's items; without `files` no file may be named as an image."""

    def __init__(self, job: EvaluationJob, *, files: bool) -> None:
        self._inline = not isinstance(job.items, ItemSource)
        self._folder = Path(job.items.path).parent if isinstance(job.items, ItemSource) else None
        self._files = files
        self._bytes = 0
        self._any = False
        self._kinds: set[JudgedKind] = set()

    def inspecting(self, visit: Callable[[Item], None]) -> Callable[[Item], None]:
        """Return a callback that checks an item's images and then passes the item on. It raises `ImageError`."""

        def inspect(item: Item) -> None:
            self._kinds.add(item.judged_as)
            if item.all_images:
                self._any = True
                self._bytes += datasets.check_images(item, self._folder, files=self._files)
                if self._inline and self._bytes > MAX_INLINE_BYTES:
                    raise JobRefused(
                        f"items: images that come with the job as data hold at most {MAX_INLINE_BYTES} bytes together, "
                        f"got {self._bytes} up to {item.id!r}; name files, or put the items into a file of their own"
                    )
            visit(item)

        return inspect

    def annotated(self, job: EvaluationJob, specs: Sequence[Sequence[PoolSpec]]) -> EvaluationJob:
        """Return the job with what was collected. Raises `JobRefused` if there are images and a judge cannot see
        any."""
        mark = "none" if not self._any else "files" if self._files else "no_files"
        for agent, of_agent in zip(job.agents, specs, strict=True):
            for spec in of_agent:
                if self._any and not spec.images:
                    raise JobRefused(
                        f"items: they have images, and pool {spec.name!r} of agent {agent.name!r} takes none; if its "
                        "model does, say images = true for the pool in the pools file"
                    )
        kinds = [] if self._kinds <= {"text"} else sorted(self._kinds)
        return job.model_copy(update={"item_images": mark, "item_kinds": kinds})


def with_absolute_paths(job: EvaluationJob, folder: Path) -> EvaluationJob:
    """Return the job with absolute paths of its own items' images, because workers read the files."""
    if isinstance(job.items, ItemSource) or not any(item.all_images for item in job.items):
        return job

    def whole(image: Image) -> Image:
        if image.form != "file":
            return image
        return image.model_copy(update={"image": str((folder / image.image).resolve())})

    return job.model_copy(update={"items": [item.with_images(whole) for item in job.items]})


def with_images(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the document of a job file with absolute paths of its items' images."""
    items = document.get("items")
    if not isinstance(items, list):
        return document
    return {**document, "items": [_absolute_images(item, folder) for item in items]}


def _absolute_images(item: Any, folder: Path) -> Any:
    if not isinstance(item, dict):
        return item
    resolved = dict(item)
    if isinstance(images := item.get("images"), list):
        resolved["images"] = [_whole(image, folder) for image in images]
    if isinstance(messages := item.get("messages"), list):
        resolved["messages"] = [_absolute_images(message, folder) for message in messages]
    return resolved


def _whole(image: Any, folder: Path) -> Any:
    if isinstance(image, dict) and isinstance(image.get("image"), str):
        return {**image, "image": _whole(image["image"], folder)}
    if not isinstance(image, str) or not image or "\0" in image or ":" in image.partition("/")[0]:
        return image
    return str(folder / image)
