"""The accelerators of this host, as its kernel reports them."""

from __future__ import annotations

import re
from pathlib import Path

_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def accelerators(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the models of this host's accelerators, one entry each: those of NVIDIA's driver, else one 'AMD' for each
    of AMD's devices. Empty if there are none, or if they cannot be seen from here."""
    models = []
    for information in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        try:
            model = _MODEL.search(information.read_text(errors="replace"))
        except OSError:
            continue
        models.append(model[1] if model else "NVIDIA")
    if not models and (root / "dev/kfd").exists():
        models = ["AMD" for _ in root.glob("dev/dri/renderD*")]
    return tuple(models)
