"""NonFiniteGuard, from a config."""

from __future__ import annotations

from typing import Literal

from tfaccel import fields
from tfaccel.lazy import keras

Action = Literal["stop", "warn", "ignore"]


def build(
    first_step: int = 0, *, nonfinite_loss: Action = "stop"
) -> list[keras.callbacks.Callback]:
    """Returns [NonFiniteGuard], or [] for "ignore".

    Args:
        first_step: Steps done before this call of `fit`.
        nonfinite_loss: What to do when the loss is NaN or infinite: "stop" the run
            with a message, "warn" once and go on, or "ignore" it.
    """
    from tfaccel.callbacks import NonFiniteGuard

    fields.check(Action, nonfinite_loss, "guard.nonfinite_loss")
    if nonfinite_loss == "ignore":
        return []
    return [NonFiniteGuard(nonfinite_loss, first_step)]
