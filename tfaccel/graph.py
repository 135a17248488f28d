"""Graphs that are made anew for each model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tfaccel.lazy import tf


def own(function: Callable, **options: Any) -> Callable:
    """Returns a `tf.function` that has nothing to do with others of the same code.

    TensorFlow counts how often a piece of code is traced, and warns of a fifth model
    in one process as though one function were traced again and again. What has no
    code, such as a partial, is counted by itself.

    Args:
        function: What to trace.
        options: Of `tf.function`.
    """
    return tf.function(functools.partial(function), **options)
