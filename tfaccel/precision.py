"""Numeric precision: the Keras dtype policy a model is built under."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from tfaccel import devices, fields
from tfaccel.lazy import keras
from tfaccel.log import logger

Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]


def build(*, precision: Precision = "auto") -> keras.DTypePolicy:
    """Returns the dtype policy; "auto" asks the visible GPUs and logs why.

    "auto" is mixed_bfloat16 from compute capability 8.0, mixed_float16 on 7.x
    (the first with tensor cores; NVIDIA, "Train With Mixed Precision"), float32
    elsewhere and on CPUs. With GPUs of several kinds the oldest decides.

    Args:
        precision: "float32", "mixed_bfloat16", "mixed_float16" or "auto".

    Example:
        with tfaccel.precision.scope(tfaccel.precision.build()):
            model = keras.applications.ResNet50(weights=None)
    """
    fields.check(Precision, precision, "precision")
    if precision == "auto":
        precision, reason = _choose(devices.gpus())
        logger.info("precision: %s (auto: %s)", precision, reason)
    else:
        logger.info("precision: %s (as asked)", precision)
    return keras.DTypePolicy(precision)


@contextlib.contextmanager
def scope(policy: keras.DTypePolicy) -> Iterator[None]:
    """Makes a policy Keras's global one for a while, then puts the old one back."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _choose(gpus: list[devices.Gpu]) -> tuple[str, str]:
    if not gpus:
        return "float32", "no GPU"
    unknown = [gpu.name for gpu in gpus if gpu.compute_capability is None]
    if unknown:
        return "float32", f"compute capability of {unknown[0]} is unknown"
    oldest = min(gpus, key=lambda gpu: gpu.compute_capability)
    major, minor = oldest.compute_capability
    reason = f"{oldest.name} has compute capability {major}.{minor}"
    if major >= 8:
        return "mixed_bfloat16", reason
    if major == 7:
        return "mixed_float16", reason
    return "float32", f"{reason}, before tensor cores"
