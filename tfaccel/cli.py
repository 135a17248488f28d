"""What all entry points share: flags, and errors a person can read."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags, logging
from ml_collections import config_flags

from tfaccel import config as config_lib
from tfaccel import log
from tfaccel.errors import UserError, did_you_mean, one_line

_PACKAGE = Path(__file__).parent
_EARLY_NOTE = re.compile(r"I0000 |WARNING: All log messages before absl::InitializeLog")


def main(run: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs an entry point; returns the exit status.

    A `UserError` becomes one line on standard error and status 2; Ctrl-C
    becomes status 130. Everything else is a bug and keeps its traceback.
    """
    _quiet_tensorflow()
    logging.set_verbosity(logging.ERROR)  # absl's, which TFDS warns through
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
        return 130


def parse(flag_values: flags.FlagValues, argv: Sequence[str], usage: str) -> bool:
    """Parses flags; returns False if help was printed instead.

    Args:
        flag_values: The entry point's own flags.
        argv: The command line, program name first.
        usage: What to print above the flags for --help.

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
        raise UserError(_flag_error(error)) from error
    if len(rest) > 1:
        raise UserError(
            f"received {' '.join(rest[1:])!r}, which is no flag: flags are written "
            "--name=value."
        )
    return True


def define_config(
    flag_values: flags.FlagValues, argv: Sequence[str], default: str | None = "quickstart"
) -> list[str]:
    """Defines --config; returns the command line with the config's name resolved.

    Raises:
        UserError: If the config file cannot be found, or a --config.field does
            not exist.
    """
    argv = [_resolve_argument(argument) for argument in _joined(argv)]
    if default is not None:
        default = resolve(default)
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([\w.]+)", argument)
        if match:
            config_lib.check_name(match[1])
    config_flags.DEFINE_config_file(
        "config",
        default,
        "Config file, or the name of a packaged one, with an optional :argument.",
        flag_values=flag_values,
        lock_config=True,
        sys_argv=argv,
    )
    return argv


def parse_with_config(flag_values, argv: Sequence[str], usage: str) -> bool:
    """As `parse`, for flags with --config: errors in the file name file and line."""
    try:
        if not parse(flag_values, argv, usage):
            return False
        if not hasattr(flag_values["config"].value, "items"):
            path = config_flags.get_config_filename(flag_values["config"])
            raise UserError(
                f"{path}: get_config() returned no config: start from "
                "tfaccel.config.default() and return it."
            )
        return True
    except Exception as error:
        raise _config_error(error, argv) from error


def describe(config, flag_values: flags.FlagValues) -> str:
    """Returns every field of a config with its value and where that comes from."""
    flag = flag_values["config"]
    overridden = config_flags.get_override_values(flag)
    if flag_values.allow_growth:
        overridden = {**overridden, "devices.memory_growth": True}
    defaults, file = (
        config_lib.flat(config_lib.default()),
        config_flags.get_config_filename(flag),
    )
    rows = []
    for name, value in config_lib.flat(config).items():
        origin = "default" if value == defaults.get(name) else file
        if any(name == o or o.startswith(f"{name}.") for o in overridden):
            origin = "command line"
        rows.append((name, repr(value), origin))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(
        f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows
    )


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


def resolve(name: str) -> str:
    """Returns the path of a config given by path or by packaged name.

    Args:
        name: "configs/quickstart.py" or "quickstart", either with ":argument".

    Raises:
        UserError: If there is no such file.
    """
    path, colon, argument = name.partition(":")
    if Path(path).is_file():
        return name
    packaged = {found.stem: found for found in _packaged_configs()}
    if path in packaged:
        return f"{packaged[path]}{colon}{argument}"
    hint = did_you_mean(Path(path).stem, packaged)
    if Path(path).is_dir():
        raise UserError(f"received --config={name}, which is a folder, expected a file. {hint}")
    raise UserError(f"received --config={name}, but there is no such file. {hint}")


def _packaged_configs() -> list[Path]:
    """configs/ lies in the package once installed, beside it in a checkout."""
    for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs"):
        found = sorted(folder.glob("[!_]*.py"))
        if found:
            return found
    return []


def _joined(argv: Sequence[str]) -> list[str]:
    """Rewrites "--config NAME" as "--config=NAME"."""
    joined, rest = [], iter(argv)
    for argument in rest:
        if argument in ("--config", "-config"):
            argument = f"--config={next(rest, '')}"
        joined.append(argument)
    return joined


def _resolve_argument(argument: str) -> str:
    match = re.fullmatch(r"--?config=(.*)", argument)
    return f"--config={resolve(match[1])}" if match else argument


def _config_error(error: Exception, argv: Sequence[str]) -> UserError:
    chain, paths = error, [_config_path(argv)]
    while chain is not None:
        for frame in reversed(traceback.extract_tb(chain.__traceback__)):
            if str(Path(frame.filename)) in paths:
                return UserError(
                    f"{frame.filename}, line {frame.lineno}: {type(chain).__name__}: "
                    f"{one_line(chain)}"
                )
        if isinstance(chain, SyntaxError):
            return UserError(f"{chain.filename}, line {chain.lineno}: {one_line(chain.msg)}")
        if isinstance(chain, AttributeError) and "get_config" in str(chain):
            return UserError(
                f"{paths[0]} has no get_config(): a config file defines get_config(arg=None) "
                "and returns a config."
            )
        chain = chain.__context__
    return error if isinstance(error, UserError) else UserError(_flag_error(error))


def _config_path(argv: Sequence[str]) -> str:
    given = [a.partition("=")[2] for a in argv if a.startswith("--config=")]
    return (given[-1] if given else resolve("quickstart")).partition(":")[0]


def _flag_error(error: Exception) -> str:
    """Absl writes "flag --x=y: reason"."""
    match = re.match(r"flag --([\w.]+)=(.*?): (.*)", one_line(error))
    if match:
        name = match[1].removeprefix("config.")
        return f"received {name}={match[2]}: {match[3]}"
    return one_line(error)


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
