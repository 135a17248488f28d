"""What callbacks remember (best value, patience used up), saved with a run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_SKIPPED = ("_model", "params", "validation_data")
_ARRAYS = "callbacks.npz"


def collect(callbacks: Sequence) -> tuple[list[dict], dict[str, np.ndarray]]:
    """Returns what the callbacks remember.

    A callback may name what to keep in `remembered`. Of others, plain values are
    kept as they are, and lists of arrays, such as EarlyStopping's best weights,
    apart; arguments of the constructor, open files and other objects are left to
    the callback.

    Returns:
        (one JSON-able dictionary a callback, arrays by name).
    """
    states, arrays = [], {}
    for index, callback in enumerate(callbacks):
        values = {}
        attributes = _own_attributes(callback)
        for name in getattr(callback, "remembered", attributes):
            value = attributes.get(name)
            if _is_arrays(value):
                for position, array in enumerate(value):
                    arrays[f"{index}/{name}/{position}"] = array
            elif _is_plain(value):
                values[name] = value.item() if isinstance(value, np.generic) else value
        states.append({"type": type(callback).__name__, "values": values})
    return states, arrays


def _own_attributes(callback) -> dict[str, Any]:
    """Keras changes some of its arguments in place (min_delta turns negative)."""
    arguments = set(_SKIPPED)
    for base in type(callback).__mro__[:-1]:
        arguments |= set(inspect.signature(base.__init__).parameters)
    return {k: v for k, v in vars(callback).items() if k not in arguments}


def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the arrays that `collect` set apart."""
    if arrays:
        np.savez(folder / _ARRAYS, **arrays)


def restore(callbacks: Sequence, folder: Path, states: list[dict[str, Any]]) -> None:
    """Gives callbacks of the same kinds, in the same order, their memory back.

    A callback that was not there when the checkpoint was written keeps what it
    has. Must come after `on_train_begin`, which resets callbacks.
    """
    arrays = _read_arrays(folder)
    for index, (callback, state) in enumerate(zip(callbacks, states, strict=False)):
        if type(callback).__name__ != state["type"]:
            continue
        vars(callback).update(state["values"])
        names = {key.split("/")[1] for key in arrays if key.startswith(f"{index}/")}
        for name in names:
            prefix = f"{index}/{name}/"
            count = sum(key.startswith(prefix) for key in arrays)
            setattr(callback, name, [arrays[f"{prefix}{i}"] for i in range(count)])


def _read_arrays(folder: Path) -> dict[str, np.ndarray]:
    if not (folder / _ARRAYS).exists():
        return {}
    with np.load(folder / _ARRAYS) as file:
        return dict(file)


def _is_arrays(value) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], np.ndarray)


def _is_plain(value) -> bool:
    if isinstance(value, np.generic):
        return True
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
