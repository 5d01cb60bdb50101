"""Signals whose handlers raise where Python drops what is raised: in finalizers and callbacks of weak references."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

AGAIN_AFTER_S = 0.1
SIGNALS: dict[type[BaseException], signal.Signals] = {SystemExit: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
"""By what the signals' handlers raise."""


@contextlib.contextmanager
def sent_again() -> Iterator[None]:
    """Send a signal once more whose SystemExit or KeyboardInterrupt Python has dropped, until it is heeded.

    Only on the main thread, which alone runs handlers; on others nothing is done.
    """
    main = threading.get_ident()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []

    def look(dropped: sys.UnraisableHookArgs) -> None:
        number = SIGNALS.get(dropped.exc_type)
        if number is None:
            before(dropped)
            return
        timer = threading.Timer(AGAIN_AFTER_S, signal.pthread_kill, (main, number))
        timer.daemon = True
        timers.append(timer)
        timer.start()

    before, sys.unraisablehook = sys.unraisablehook, look
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()
