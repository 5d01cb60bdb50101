"""The former name of `dicast.app.analysis`: programs that import its documented modules by this name go on working."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module

warnings.warn("dicast.app.statistics is now dicast.app.analysis", DeprecationWarning, stacklevel=2)
for _name in ("agreement", "combining", "powered", "preferences", "ratings"):
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = import_module(f"dicast.app.analysis.{_name}")
