"""The images of a job, each once, as they were when it started.

<results>/<job>/images/<SHA-256>     the bytes
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from dicast.app.domain.image import KEPT
from dicast.app.reports.durable import replacing
from dicast.workers.system.private_files import make_folder

_FOLDER = "images"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def keep_image(folder: Path, data: bytes) -> str:
    """Put an image into the folder of a job, unless it is there; what an item has in its place. May be killed, called
    again, and by several at once. Raises OSError."""
    digest = hashlib.sha256(data).hexdigest()
    path = folder / _FOLDER / digest
    if not path.exists():
        make_folder(path.parent)
        with replacing(path) as file:
            file.write(data)
    return f"{KEPT}{digest}"


def kept_image(folder: Path, reference: str) -> bytes:
    """The bytes of one that was kept. Raises OSError where it is gone, ValueError where it is another by now."""
    digest = reference.removeprefix(KEPT)
    if not _DIGEST.fullmatch(digest):
        raise ValueError("it has no digest")
    data = (folder / _FOLDER / digest).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("it is another by now")
    return data
