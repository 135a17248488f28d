"""The flag --config: finds config files, and says what is wrong in them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import config_dict, config_flags

from tfaccel import cli
from tfaccel import config as config_lib
from tfaccel.errors import UserError, did_you_mean, one_line

_PACKAGE = Path(__file__).parent


def define(
    flag_values: flags.FlagValues, argv: Sequence[str], default: str | None = "quickstart"
) -> list[str]:
    """Defines --config; returns the command line with the config's name resolved.

    Raises:
        UserError: If the config file cannot be found, or a --config.field does
            not exist.
    """
    argv = _config_first(argv)
    if default is not None:
        default = resolve(default)
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]*)", argument)
        if match and not match[1]:
            raise UserError(
                f"received {argument}, expected --config.FIELD=VALUE: --print_config lists "
                "all fields."
            )
        if match:
            config_lib.check_name(match[1])
    try:
        config_flags.DEFINE_config_file(
            "config",
            default,
            "Config file, or the name of a packaged one, with an optional :argument.",
            flag_values=flag_values,
            lock_config=True,
            sys_argv=argv,
        )
    except Exception as error:
        raise _config_error(error, argv) from error
    return argv


def parse(flag_values, argv: Sequence[str], usage: str) -> bool:
    """Parses flags with --config; errors in the config file name file and line."""
    try:
        if not cli.parse(flag_values, argv, usage):
            return False
        config = flag_values["config"].value
        hasattr(config, "items")  # An OSError in the file is raised at the first access.
        if not isinstance(config, config_dict.ConfigDict):
            path = config_flags.get_config_filename(flag_values["config"])
            raise UserError(
                f"{path}: get_config() returned no config: start from "
                "tfaccel.config.default() and return it."
            )
        _take_none(config)
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


def _take_none(config: config_dict.ConfigDict) -> None:
    """Makes "--config.field=None" None, where text would else be the word itself."""
    given = config_lib.flat(config)
    fitting = {
        name: None
        for name, (_, parameter) in config_lib.schema().items()
        if parameter.default is None and given.get(name) == "None"
    }
    config_lib.update(config, fitting)


def _packaged_configs() -> list[Path]:
    """configs/ lies in the package once installed, beside it in a checkout."""
    for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs"):
        found = sorted(folder.glob("[!_]*.py"))
        if found:
            return found
    return []


def _config_first(argv: Sequence[str]) -> list[str]:
    """Puts the last --config, resolved, before the fields that override it."""
    program, *rest = argv
    name, others, words = None, [], iter(rest)
    for argument in words:
        flag, equals, value = argument.partition("=")
        if flag not in ("--config", "-config"):
            others.append(argument)
            continue
        name = value if equals else next(words, "")
        if not name:
            packaged = ", ".join(found.stem for found in _packaged_configs())
            raise UserError(
                "received no value for --config, expected a file or the name of a packaged "
                f"config. Known: {packaged}."
            )
    return [program, *([f"--config={resolve(name)}"] if name else []), *others]


def _config_error(error: Exception, argv: Sequence[str]) -> UserError:
    path = _config_path(argv)
    chain = error
    while chain is not None:
        for frame in reversed(traceback.extract_tb(chain.__traceback__)):
            if Path(frame.filename).resolve() == Path(path).resolve():
                return UserError(f"{path}, line {frame.lineno}: {_in_file(chain)}")
        if isinstance(chain, SyntaxError) and chain.filename == path:
            return UserError(f"{path}, line {chain.lineno}: {one_line(chain.msg)}")
        if isinstance(chain, TypeError) and str(chain).startswith("get_config()"):
            return UserError(f"{path}: {one_line(chain)}")
        if isinstance(chain, AttributeError) and "get_config" in str(chain):
            return UserError(
                f"{path} has no get_config(): a config file defines get_config(arg=None) "
                "and returns a config."
            )
        chain = chain.__cause__ or chain.__context__
    if isinstance(error, (AttributeError, KeyError)):
        return _no_argument(error, argv)
    return error if isinstance(error, UserError) else UserError(cli.flag_error(error))


def _in_file(error: BaseException) -> str:
    """An error that a config file raised, in words."""
    match = re.match(r"['\"]*Key \"(\w+)\" does not exist and cannot be added", str(error))
    if match is None:
        return f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
    return f"received the config field {match[1]}, which does not exist. " + (
        config_lib.field_hint(match[1])
    )


def _no_argument(error: Exception, argv: Sequence[str]) -> UserError:
    """A --config.section.arguments.NAME that the config file does not have."""
    names = [a.partition("=")[0].partition("config.")[2] for a in argv if "config." in a]
    name = next((n for n in names if n.rpartition(".")[2] in str(error)), "")
    section = name.rpartition(".")[0]
    return UserError(
        f"received the config field {name}, which {_config_path(argv)} does not set. "
        f"{one_line(error.args[0])} To add it, give all of --config.{section}={{...}}."
    )


def _config_path(argv: Sequence[str]) -> str:
    given = [a.partition("=")[2] for a in argv if a.startswith("--config=")]
    return (given[-1] if given else resolve("quickstart")).partition(":")[0]
