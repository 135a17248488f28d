"""Log lines for people: plain text, one logger for the package."""

import contextlib
import logging
import sys
from collections.abc import Iterator

logger = logging.getLogger("tfaccel")


def to_terminal() -> None:
    """Sends tfaccel's log lines to standard output, without decoration.

    Entry points call it once; as a library tfaccel leaves logging to the host
    project. Calling it again changes nothing.
    """
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for old in list(logger.handlers):
        logger.removeHandler(old)
    handler = _Terminal()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)


@contextlib.contextmanager
def recorded(lines: list[str]) -> Iterator[None]:
    """Adds tfaccel's log lines, such as what "auto" came to, to a list as well."""
    level = logger.level
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Terminal(logging.Handler):
    """Writes above a progress bar, if there is one; warnings go to stderr."""

    def emit(self, record):
        from tqdm import tqdm

        warning = record.levelno >= logging.WARNING
        text = self.format(record)
        stream = sys.stderr if warning else sys.stdout
        tqdm.write(f"warning: {text}" if warning else text, file=stream)
        stream.flush()
