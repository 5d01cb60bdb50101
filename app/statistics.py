"""The former name of `dicast.app.analysis`: programs that import its documented modules by this name go on working."""

from __future__ import annotations

import sys
import warnings

from dicast.app.analysis import agreement, combining, powered, preferences, ratings

warnings.warn("dicast.app.statistics is now dicast.app.analysis", DeprecationWarning, stacklevel=2)
for _module in (agreement, combining, powered, preferences, ratings):
    sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module
