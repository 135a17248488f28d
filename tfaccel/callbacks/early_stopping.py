"""Keras's EarlyStopping, from a config."""

from __future__ import annotations

from typing import Literal

from tfaccel.fields import Count
from tfaccel.lazy import keras


def build(
    *,
    monitor: str = "val_loss",
    patience: Count = 0,
    mode: Literal["auto", "max", "min"] = "auto",
    restore_best_weights: bool = False,
) -> list[keras.callbacks.Callback]:
    """Returns [EarlyStopping], or [] if patience is 0.

    Args:
        monitor: The metric to watch, such as "val_accuracy".
        patience: Epochs without improvement after which to stop; 0 never stops.
        mode: Whether the metric should be "max" or "min".
        restore_best_weights: Go back to the weights of the best epoch.
    """
    if not patience:
        return []
    return [
        keras.callbacks.EarlyStopping(
            monitor=monitor,
            patience=patience,
            mode=mode,
            restore_best_weights=restore_best_weights,
            verbose=1,
        )
    ]
