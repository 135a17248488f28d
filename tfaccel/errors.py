"""The error a person can mend, and the help to mend it."""

import difflib
import re
from collections.abc import Iterable

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class UserError(ValueError):
    """Something the user asked for cannot be done.

    The message is one line: what was received, what was expected, how to fix
    it. Entry points print it and exit with status 2; nothing else is caught.
    """


def one_line(error: object, limit: int = 300) -> str:
    """Returns an exception's message (or any text) folded to one short line."""
    text = " ".join(_COLOURS.sub("", str(error)).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the nearest known names as a sentence, or all of them if few.

    Example:
        >>> did_you_mean("adm", ["adam", "sgd"])
        'Did you mean adam? Known: adam, sgd.'
    """
    known = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(lowered[c] for c in close)}? " if close else ""
    if len(known) <= 40:
        hint += f"Known: {', '.join(known)}."
    return hint.strip()
