"""Copies the images of items into the job's folder when the job starts, and reads them when a call is made."""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from dicast.app import datasets
from dicast.app.domain.image import Image, ImageError, inspect_image
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.prompt import PlacedImage
from dicast.app.domain.text import excerpt
from dicast.app.ledger.records import JobRecord
from dicast.app.providers.base import ImagePart
from dicast.app.reports.folders import own_folder
from dicast.app.reports.stored_items import keep_image, kept_image

CACHE_BYTES = 64_000_000
"""How many bytes of images in base64 a worker caches: the calls of one item's judges and dimensions come close
together."""


class Images(Protocol):
    """Reads the images of a call."""

    async def parts(self, job: JobRecord, placed: Sequence[PlacedImage]) -> list[ImagePart]:
        """Return the images as they are sent to the provider. Raises `ImageError` for an image that is gone."""
        ...


class StoredImages:
    """Reads images from the folders of jobs, on one event loop, and caches some."""

    def __init__(self, results_dir: str) -> None:
        self._results_dir = results_dir
        self._cached: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    async def parts(self, job: JobRecord, placed: Sequence[PlacedImage]) -> list[ImagePart]:
        """See `Images`."""
        return [await self._part(job, at, image) for at, image in placed]

    async def _part(self, job: JobRecord, at: int, image: Image) -> ImagePart:
        if image.kept is None:
            return ImagePart(at, address=image.image, detail=image.detail)
        coded = self._cached.get(image.image)
        if coded is None:
            coded = await asyncio.to_thread(self._read, job, image)
            self._remember(image.image, coded)
        else:
            self._cached.move_to_end(image.image)
        return ImagePart(at, type=image.kept.type, data=coded, detail=image.detail)

    def _read(self, job: JobRecord, image: Image) -> str:
        try:
            data = kept_image(own_folder(self._results_dir, job.id, job.incarnation), image.image)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ImageError(f"image {excerpt(image.image, 80)} of the job's results cannot be read: {why}") from None
        return base64.b64encode(data).decode()

    def _remember(self, name: str, coded: str) -> None:
        if name not in self._cached:
            self._size += len(coded)
        self._cached[name] = coded
        while self._size > CACHE_BYTES:
            self._size -= len(self._cached.popitem(last=False)[1])


def image_storer(job: JobRecord, folder: Path) -> Callable[[Item], Item]:
    """Return a function that copies an item's images into the job's folder and returns the item with their digests. It
    raises `ImageError` for an image that can no longer be used, and OSError if the disk fails."""
    source = job.spec.items
    beside = Path(source.path).parent if isinstance(source, ItemSource) else None
    files = job.spec.item_images == "files"

    def store_image(image: Image) -> Image:
        data = datasets.read_image(image, beside, files=files)
        if data is None:
            return image
        description = inspect_image(data, Path(image.image).name if image.form == "file" else None)
        return image.model_copy(update={"image": keep_image(folder, data), "kept": description})

    def store_images(item: Item) -> Item:
        try:
            return item.with_images(store_image)
        except ValueError as error:
            raise ImageError(f"images: of the item {excerpt(repr(item.id), 80)}: {error}") from None

    return store_images
