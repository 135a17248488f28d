"""The user's own functions, named in a config as "module:function"."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from tfaccel.errors import UserError, did_you_mean


def check_name(name: str, field: str) -> None:
    """Refuses what is not of the form "module:function"; imports nothing."""
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise UserError(f"received {field}={name}, expected 'module:function'.")


def function(name: str, field: str) -> Callable:
    """Returns the function that "module:function" names.

    Modules are looked for in the current folder, then among the installed.

    Args:
        name: Such as "my_models:small_net".
        field: The config field it stands in, for messages.

    Raises:
        UserError: If there is no such module or function.
    """
    check_name(name, field)
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"received {field}={name}, but there is no module {module_name!r} in this "
            "folder or installed: expected 'module:function'."
        ) from error
    found = getattr(module, function_name, None)
    if not callable(found):
        functions = [n for n, f in vars(module).items() if inspect.isfunction(f)]
        raise UserError(
            f"received {field}={name}, but {module_name} has no function "
            f"{function_name!r}. {did_you_mean(function_name, functions)}".strip()
        )
    return found
