"""What callbacks remember (best value, patience used up), saved with a run."""

from __future__ import annotations

import collections
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_SKIPPED = ("_model", "params", "validation_data")
_ARRAYS = "callbacks.npz"


def collect(callbacks: Sequence) -> tuple[dict[str, dict], dict[str, np.ndarray]]:
    """Returns what the callbacks remember.

    A callback may name what to keep in `remembered`. Of others, plain values are
    kept as they are, and lists of arrays, such as EarlyStopping's best weights,
    apart; arguments of the constructor, open files and other objects are left to
    the callback.

    Returns:
        (a JSON-able dictionary a callback, by kind and count, such as
        "EarlyStopping/0"; arrays by name).
    """
    states, arrays = {}, {}
    for key, callback in _keyed(callbacks):
        values = states[key] = {}
        attributes = _own_attributes(callback)
        for name in getattr(callback, "remembered", attributes):
            value = attributes.get(name)
            if _is_arrays(value):
                for position, array in enumerate(value):
                    arrays[f"{key}/{name}/{position}"] = array
            elif _is_plain(value):
                values[name] = value.item() if isinstance(value, np.generic) else value
    return states, arrays


def _keyed(callbacks: Sequence) -> Iterator[tuple[str, Any]]:
    """Callbacks may come and go between restarts; the others keep their key."""
    counts = collections.Counter()
    for callback in callbacks:
        kind = type(callback).__name__
        yield f"{kind}/{counts[kind]}", callback
        counts[kind] += 1


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


def restore(callbacks: Sequence, folder: Path, states: dict[str, dict]) -> None:
    """Gives callbacks their memory back; a new callback keeps what it has.

    Must come after `on_train_begin`, which resets callbacks.
    """
    arrays = _read_arrays(folder)
    for key, callback in _keyed(callbacks):
        vars(callback).update(states.get(key, {}))
        own = [name.removeprefix(f"{key}/") for name in arrays if name.startswith(f"{key}/")]
        for name in {name.rpartition("/")[0] for name in own}:
            count = sum(found.startswith(f"{name}/") for found in own)
            setattr(callback, name, [arrays[f"{key}/{name}/{i}"] for i in range(count)])


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
