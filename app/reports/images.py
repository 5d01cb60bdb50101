"""The images of a job, each stored once, as they were when the job started.

<results>/<job>/images/<SHA-256>     the bytes
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from dicast.app.domain.image import DIGEST_PREFIX
from dicast.app.reports.durable import replacing
from dicast.workers.system.private_files import make_folder

_FOLDER = "images"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def keep_image(folder: Path, data: bytes) -> str:
    """Store an image in the folder of a job, unless it is there, and return the reference that an item has in its
    place. May be killed, called again, and be called by several processes at once. Raises OSError."""
    digest = hashlib.sha256(data).hexdigest()
    path = folder / _FOLDER / digest
    if not path.exists():
        make_folder(path.parent)
        with replacing(path) as file:
            file.write(data)
    return f"{DIGEST_PREFIX}{digest}"


def kept_image(folder: Path, reference: str) -> bytes:
    """Return the bytes of a stored image. Raises OSError if it is gone, ValueError if its bytes have changed."""
    digest = reference.removeprefix(DIGEST_PREFIX)
    if not _DIGEST.fullmatch(digest):
        raise ValueError("it has no digest")
    data = (folder / _FOLDER / digest).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("it is another by now")
    return data
