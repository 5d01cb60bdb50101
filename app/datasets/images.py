"""Images that items name: checked before a job is accepted, read when it starts."""

from __future__ import annotations

from pathlib import Path

from dicast.app.domain.image import MAX_CALL_BYTES, MAX_IMAGE_BYTES, Image, ImageError, inspect_image, media_type
from dicast.app.domain.item import Item
from dicast.app.domain.text import excerpt

HEAD_BYTES = 16


def check_images(item: Item, folder: Path | None, *, files: bool = True) -> int:
    """Check that all images of an item can be used; return the number of bytes of those given as data.

    A relative path starts at `folder`; without `files` no file may be named. No URL is fetched. Raises `ImageError`.
    """
    total = data = 0
    for number, image in enumerate(item.all_images, 1):
        try:
            if image.form == "kept" or image.kept is not None:
                raise ValueError("is a digest, which Dicast alone sets")
            if image.form == "data":
                size = inspect_image(image.data).bytes
                data += size
                total += size
            elif image.form == "file":
                total += _checked_size(_path(image, folder, files))
        except ValueError as error:
            raise _wrong(item, number, error) from None
    if total > MAX_CALL_BYTES:
        raise ImageError(
            f"images of the item {excerpt(repr(item.id), 80)}: together they hold at most {MAX_CALL_BYTES} bytes, got "
            f"{total}"
        )
    return data


def read_image(image: Image, folder: Path | None, *, files: bool) -> bytes | None:
    """Return the bytes of a file or of data; None for a URL. Raises ValueError, without the place."""
    if image.form == "data":
        return image.data
    if image.form != "file":
        return None
    path = _path(image, folder, files)
    try:
        with path.open("rb") as file:
            return file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{excerpt(str(path), 200)} cannot be read: {error.strerror or error}") from None


def _path(image: Image, folder: Path | None, files: bool) -> Path:
    """Return the file's path. Raises ValueError if no file may be named: whoever sends items over HTTP must not have
    this machine read one."""
    if not files:
        raise ValueError("items that come over HTTP name no files; send data:image/png;base64,... or an address")
    return (folder or Path.cwd()) / image.image


def _checked_size(path: Path) -> int:
    """Return the file's size in bytes. Raises ValueError if it is no image, too large, or cannot be read."""
    try:
        if not path.is_file():
            raise ValueError(f"there is no file {excerpt(str(path), 200)}")
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise ValueError(f"{excerpt(str(path), 200)} cannot be read: {error.strerror or error}") from None
    try:
        media_type(head)
    except ValueError as error:
        raise ValueError(f"{excerpt(str(path), 200)} {error}") from None
    if size > MAX_IMAGE_BYTES:
        raise ValueError(f"an image holds at most {MAX_IMAGE_BYTES} bytes, got {size} in {excerpt(str(path), 200)}")
    return size


def _wrong(item: Item, number: int, error: ValueError) -> ImageError:
    return ImageError(f"images: of the item {excerpt(repr(item.id), 80)}, image {number}: {error}")
