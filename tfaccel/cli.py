"""What all entry points share: flags, and errors a person can read."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags, logging

from tfaccel import config as config_lib
from tfaccel import fields, log
from tfaccel.errors import UserError, did_you_mean, one_line
from tfaccel.termination import Terminated

_EARLY_NOTE = re.compile(r"I0000 |WARNING: All log messages before absl::InitializeLog")


def main(run: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs an entry point; returns the exit status.

    A `UserError` becomes one line on standard error and status 2; Ctrl-C
    becomes status 130, and SIGTERM 143. Everything else is a bug and keeps its traceback.
    """
    _quiet_tensorflow()
    logging.set_verbosity(logging.ERROR)  # absl's: TFDS and ml_collections warn
    log.to_terminal()
    try:
        return run(sys.argv if argv is None else argv)
    except UserError as error:
        print(f"error: {one_line(error, 2000)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(
            f"interrupted{(interrupt.args and ': ' + interrupt.args[0]) or ''}",
            file=sys.stderr,
        )
        ended_by = signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT
        return 128 + ended_by


def parse(
    flag_values: flags.FlagValues,
    argv: Sequence[str],
    usage: str,
    words: list[str] | None = None,
) -> bool:
    """Parses flags; returns False if help was printed instead.

    Args:
        flag_values: The entry point's own flags.
        argv: The command line, program name first.
        usage: What to print above the flags for --help.
        words: Takes the words that are no flags; they are refused if it is None.

    Raises:
        UserError: For an unknown flag, a value that does not fit, or stray words.
    """
    if any(argument in ("--help", "-h", "--helpfull", "-help") for argument in argv):
        print(f"{usage.strip()}\n\nflags:\n{_flag_help(flag_values)}")
        return False
    try:
        rest = flag_values(list(argv))
    except flags.UnrecognizedFlagError as error:
        hint = did_you_mean(error.flagname, _names(flag_values))
        raise UserError(f"received the unknown flag --{error.flagname}. {hint}") from error
    except flags.Error as error:
        raise UserError(flag_error(error)) from error
    if words is not None:
        words.extend(rest[1:])
    elif len(rest) > 1:
        raise UserError(
            f"received {' '.join(rest[1:])!r}, which is no flag: flags are written "
            "--name=value."
        )
    return True


def start_tensorflow() -> None:
    """Imports TensorFlow without the notes it prints before it can be told not to.

    They come from C++ before any log level holds, so standard error itself is
    set aside meanwhile; everything but the notes is printed afterwards.
    """
    if "tensorflow" in sys.modules:
        return
    with tempfile.TemporaryFile() as aside:
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(aside.fileno(), 2)
        try:
            importlib.import_module("tensorflow")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            aside.seek(0)
            lines = aside.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.writelines(line for line in lines if not _EARLY_NOTE.match(line))


def flag_error(error: Exception) -> str:
    """Returns absl's "flag --x=y: reason" in our words."""
    match = re.match(r"flag --([\w.]+)=(.*?): (.*)", one_line(error))
    if match is None:
        return one_line(error)
    flag, received, reason = match.groups()
    name, known = flag.removeprefix("config."), config_lib.schema()
    if flag.startswith("config.") and name in known:
        reason = f"expected {fields.describe(known[name][1].annotation)}."
        return f"received {name}={received}, {reason}"
    if "Non-boolean" in reason:
        return f"received {name}={received}, expected true or false."
    if "invalid literal for int()" in reason:
        return f"received {name}={received}, expected a whole number."
    return f"received {name}={received}: {reason}"


def _names(flag_values) -> list[str]:
    names = [name for name in flag_values if "." not in name]
    return [f"--{name}" for name in names if name not in flags.FLAGS]


def _flag_help(flag_values) -> str:
    lines = []
    for name in sorted(_names(flag_values)):
        flag = flag_values[name[2:]]
        lines.append(f"  {name}: {' '.join(flag.help.split())}")
    return "\n".join(lines)


def _quiet_tensorflow() -> None:
    """Hides TensorFlow's start-up lines; what matters comes as an exception."""
    has_gpu = Path("/proc/driver/nvidia").exists()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if has_gpu else "3")
