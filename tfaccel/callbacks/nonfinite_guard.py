"""Stops a run whose loss is no number any more."""

from __future__ import annotations

import math
from typing import Literal

import keras

from tfaccel.errors import UserError
from tfaccel.log import logger


class NonFiniteGuard(keras.callbacks.Callback):
    """Looks at the loss whenever Keras hands it over; NaN and infinity end the run.

    It raises before anything is saved, so the newest checkpoint is from before.
    With `steps_per_execution`, or in `tfaccel.fit`, it names the steps of the call.

    Args:
        action: "stop" raises `UserError`; "warn" logs one warning a run.
        first_step: Steps done before this call of `fit`.

    Example:
        model.fit(x, y, callbacks=[tfaccel.callbacks.NonFiniteGuard()])
    """

    remembered = ()

    def __init__(self, action: Literal["stop", "warn"] = "stop", first_step: int = 0):
        super().__init__()
        self.action = action
        self.step = first_step

    def on_train_begin(self, logs=None):
        """Starts anew."""
        self._warned = False

    def on_train_batch_begin(self, batch, logs=None):
        """Notes where the coming steps start."""
        self._batch_start = batch

    def on_train_batch_end(self, batch, logs=None):
        """Checks the loss."""
        before = self.step
        self.step += batch + 1 - self._batch_start
        loss = (logs or {}).get("loss", 0.0)
        if math.isfinite(loss) or self._warned:
            return
        message = self._message(loss, before + 1)
        if self.action == "stop":
            raise UserError(message)
        logger.warning("%s", message)
        self._warned = True

    def _message(self, loss, first):
        steps = f"steps {first} to {self.step}" if first < self.step else f"step {self.step}"
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        return (
            f"the loss became {loss} in {steps} (learning rate {rate:.3g}), expected a finite "
            "number: try a lower learning rate, a longer warm-up, clipping "
            "(global_clipnorm=1.0) or float32, and look for NaN in the data."
        )
