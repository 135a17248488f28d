"""SIGTERM: how schedulers ask a run to end, some seconds before they end it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """A run was asked to end, and did so in order."""


class Request:
    """Whether this process has been asked to end; a second request ends it at once.

    Example:
        request = Request()
        with request.heeded():
            while not request.made:
                ...
    """

    def __init__(self):
        self.made = False

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Notes SIGTERM instead of dying of it; in the main thread only, as Python asks."""

        def note(number, frame):
            self.made = True
            signal.signal(number, signal.SIG_DFL)

        with kept():
            if _in_main_thread():
                signal.signal(signal.SIGTERM, note)
            yield


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Puts back what SIGTERM does, whoever changes it meanwhile."""
    if not _in_main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None: not set from Python, so nothing that could be put back from here.
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
