"""Callbacks that write files: only the chief of several workers has them."""

from __future__ import annotations

from collections.abc import Iterable

from tfaccel.lazy import keras


def for_worker(callbacks: Iterable, replicas) -> list:
    """Returns the callbacks that this worker is to have.

    Keras's that write files, and any with `chief_only = True`, are left out on
    workers other than the chief.

    Args:
        callbacks: All of them.
        replicas: See `tfaccel.replicas`.
    """
    if replicas.chief:
        return list(callbacks)
    writers = (
        keras.callbacks.BackupAndRestore,
        keras.callbacks.CSVLogger,
        keras.callbacks.ModelCheckpoint,
        keras.callbacks.TensorBoard,
    )
    return [
        callback
        for callback in callbacks
        if not (isinstance(callback, writers) or getattr(callback, "chief_only", False))
    ]
