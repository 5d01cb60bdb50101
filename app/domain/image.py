"""Images that belong to items: what a job may say about one, and what is stored about one.

A file or a data URL is stored once in the job's folder when the job starts, under the digest of its bytes, and the item
then holds the digest in its place. A URL is passed to the provider unchanged; nothing here ever fetches one.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic.json_schema import SkipJsonSchema

from dicast.app.domain.text import Strict, excerpt
from dicast.errors import DicastError

MAX_IMAGES = 20
"""The most images of one item, those of its messages included."""
MAX_IMAGE_BYTES = 5_000_000
"""The most bytes of one image, the limit of Anthropic's API:
https://platform.claude.com/docs/en/build-with-claude/vision."""
MAX_CALL_BYTES = 20_000_000
"""The most bytes of an item's images together: in base64 they stay below the 32 MB limit on requests."""
MAX_ADDRESS_CHARS = 2000
UNKNOWN_TOKENS = 1600
"""The tokens assumed for an image of unknown size; neither of the two rules of `image_tokens` gives more."""
DIGEST_PREFIX = "sha256:"

Detail = Literal["low", "high", "auto"]
MediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
ImageForm = Literal["data", "address", "kept", "file"]

_DATA = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DIGEST = re.compile(rf"{DIGEST_PREFIX}[0-9a-f]{{64}}")


class ImageError(DicastError, ValueError):
    """An image cannot be used. The message names item, field, bound and value."""

    problem = "invalid-job"


def _reference(value: str) -> str:
    head = excerpt(value, 60)
    if value.startswith("data:"):
        if not _DATA.match(value):
            raise ValueError(f"data must begin with data:image/png;base64, (or jpeg, gif, webp), got {head!r}")
    elif value.startswith(DIGEST_PREFIX):
        if not _DIGEST.fullmatch(value):
            raise ValueError(f"is no digest, got {head!r}")
    elif value.lower().startswith(("http://", "https://")):
        if len(value) > MAX_ADDRESS_CHARS or not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError(
                f"an address has at most {MAX_ADDRESS_CHARS} printable ASCII characters without spaces, got {head!r}"
            )
    elif _SCHEME.match(value) or "\0" in value:
        raise ValueError(f"must be a file, data:image/png;base64,... or an address by http(s), got {head!r}")
    return value


class StoredImage(Strict):
    """Facts about an image that is stored in a job's folder. `width` and `height` are in pixels."""

    type: MediaType
    bytes: int
    width: int | None = None
    height: int | None = None
    name: str | None = None


class Image(Strict):
    """One image of an item. A bare text is short for its `image`."""

    image: Annotated[str, StringConstraints(min_length=1), AfterValidator(_reference)] = Field(
        description="a file, data:image/png;base64,... or an address, which the provider fetches"
    )
    description: str | None = Field(default=None, max_length=2000, description="what the judge is told of it")
    detail: Detail | None = Field(default=None, description="how closely it is looked at, where the API knows that")
    kept: SkipJsonSchema[StoredImage | None] = Field(default=None, description="set by Dicast alone")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {"image": data} if isinstance(data, str) else data

    @property
    def form(self) -> ImageForm:
        """How the image is given."""
        if self.image.startswith("data:"):
            return "data"
        if self.image.startswith(DIGEST_PREFIX):
            return "kept"
        return "address" if self.image.lower().startswith(("http://", "https://")) else "file"

    @property
    def data(self) -> bytes:
        """The bytes of a data URL. Raises ValueError."""
        match = _DATA.match(self.image)
        assert match is not None
        coded = self.image[match.end() :]
        if len(coded) > 4 * MAX_IMAGE_BYTES // 3 + 4:
            raise ValueError(f"an image holds at most {MAX_IMAGE_BYTES} bytes, got about {3 * len(coded) // 4}")
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("its data is no base64") from None


def inspect_image(data: bytes, name: str | None = None) -> StoredImage:
    """Return the type and size of an image from its bytes. Raises ValueError if they are no image, or too large."""
    if len(data) > MAX_IMAGE_BYTES:
        raise ValueError(f"an image holds at most {MAX_IMAGE_BYTES} bytes, got {len(data)}")
    kind = media_type(data)
    width, height = _size(data, kind) or (None, None)
    return StoredImage(type=kind, bytes=len(data), width=width, height=height, name=name)


def media_type(head: bytes) -> MediaType:
    """Return the media type by the first bytes (16 suffice), whatever the file's name says. Raises ValueError."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError(f"is no PNG, JPEG, GIF or WebP image: its first bytes are {head[:8].hex(' ') or 'missing'}")


def _size(data: bytes, kind: MediaType) -> tuple[int, int] | None:
    """Return width and height from the header; None if it is truncated or inconsistent."""
    try:
        size: tuple[int, int] | None
        if kind == "image/png":
            size = struct.unpack_from(">II", data, 16)
        elif kind == "image/gif":
            size = struct.unpack_from("<HH", data, 6)
        else:
            size = _size_of_jpeg(data) if kind == "image/jpeg" else _size_of_webp(data)
    except (struct.error, IndexError):
        return None
    return size if size is not None and min(size) > 0 else None


def _size_of_jpeg(data: bytes) -> tuple[int, int] | None:
    """Read the frame header (ITU T.81, B.2.2): the first of the markers C0 to CF that is no table."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return int(width), int(height)
        (length,) = struct.unpack_from(">H", data, at + 2)
        at += 2 + int(length)
    return None


def _size_of_webp(data: bytes) -> tuple[int, int] | None:
    """Read the first chunk: https://developers.google.com/speed/webp/docs/riff_container, RFC 6386 and RFC 9649."""
    chunk = data[12:16]
    if chunk == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return int(width) & 0x3FFF, int(height) & 0x3FFF
    return None


def image_tokens(image: Image) -> int:
    """About how many input tokens it costs: the larger of what two providers' rules give.

    OpenAI (https://platform.openai.com/docs/guides/images-vision#calculating-costs): 85 and 170 for each tile of 512 x
    512 once it fits into 2048 x 2048 and its shorter side is at most 768; 85 with low detail. Anthropic
    (https://platform.claude.com/docs/en/build-with-claude/vision): width x height / 750, of at most 1568 a side and
    1.15 megapixels. Newer models count otherwise; the governor learns by what factor the estimate is wrong.
    """
    stored = image.kept
    if stored is None or stored.width is None or stored.height is None:
        return UNKNOWN_TOKENS
    width, height = float(stored.width), float(stored.height)
    scale = min(1.0, 1568 / max(width, height), math.sqrt(1_150_000 / (width * height)))
    by_area = round(width * height * scale * scale / 750)
    if image.detail == "low":
        by_tiles = 85
    else:
        scale = min(1.0, 2048 / max(width, height))
        scale *= min(1.0, 768 / (min(width, height) * scale))
        by_tiles = 85 + 170 * _tiles(width * scale) * _tiles(height * scale)
    return min(UNKNOWN_TOKENS, max(by_area, by_tiles, 1))


def _tiles(pixels: float) -> int:
    return max(1, -(-round(pixels) // 512))


def display_name(image: Image, default: str) -> str:
    """Return a name by which a person can identify the image: its file's name, its URL, or `default`."""
    if image.kept is not None and image.kept.name:
        return image.kept.name
    return excerpt(image.image, 200) if image.form in ("address", "file") else default
