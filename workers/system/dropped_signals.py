"""Signals that get lost because their handlers raise in finalizers or callbacks of weak references, where Python drops
exceptions."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

AGAIN_AFTER_S = 0.1
SIGNALS: dict[type[BaseException], signal.Signals] = {SystemExit: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
"""The signals by the exceptions that their handlers raise."""


@contextlib.contextmanager
def sent_again() -> Iterator[None]:
    """Send a signal again, inside the context, whose SystemExit or KeyboardInterrupt Python has dropped, until it takes
    effect.

    This works on the main thread only, which alone runs handlers; on others nothing is done.
    """
    main = threading.get_ident()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []

    def resend(dropped: sys.UnraisableHookArgs) -> None:
        number = SIGNALS.get(dropped.exc_type)
        if number is None:
            before(dropped)
            return
        timer = threading.Timer(AGAIN_AFTER_S, signal.pthread_kill, (main, number))
        timer.daemon = True
        timers.append(timer)
        timer.start()

    before, sys.unraisablehook = sys.unraisablehook, resend
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()
