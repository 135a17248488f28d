"""A trace of some steps, for TensorBoard's profiler."""

from __future__ import annotations

from pathlib import Path

import keras
import tensorflow as tf

from tfaccel.errors import one_line
from tfaccel.log import logger


class Profiler(keras.callbacks.Callback):
    """Writes a trace of the steps from `first` on, up to but not including `last`.

    In a stock `fit` with `steps_per_execution` the trace holds the whole calls in
    which these steps lie.

    Args:
        directory: Where to write; TensorBoard finds it in plugins/profile.
        first: The first step, from 0.
        last: The step to stop before.
        first_step: Steps done before this call of `fit`.

    Example:
        model.fit(x, y, callbacks=[tfaccel.callbacks.Profiler("events", 10, 20)])
    """

    chief_only = True
    remembered = ()

    def __init__(self, directory: str | Path, first: int, last: int, first_step: int = 0):
        super().__init__()
        self.directory = Path(directory)
        self.first, self.last = first, last
        self.step = first_step
        self._running = self._done = False

    def next_boundary(self, step: int) -> int | None:
        """Returns the next step after `step` at which the trace starts or ends."""
        return next((edge for edge in (self.first, self.last) if edge > step), None)

    def on_train_batch_begin(self, batch, logs=None):
        """Starts the trace if it is time."""
        self._batch_start = batch
        if self.first <= self.step < self.last and not (self._running or self._done):
            try:
                tf.profiler.experimental.start(str(self.directory))
            except (OSError, tf.errors.OpError) as error:
                self._done = True
                logger.warning("profile: cannot be taken: %s", one_line(error))
                return
            self._running = True

    def on_train_batch_end(self, batch, logs=None):
        """Ends the trace if it is time."""
        self.step += batch + 1 - self._batch_start
        if self._running and self.step >= self.last:
            self._stop()

    def on_train_end(self, logs=None):
        """Ends the trace, or says why there is none."""
        if self._running:
            self._stop()
        elif not self._done:
            logger.info(
                "profile: steps %d:%d were not reached: this start ended at step %d",
                self.first,
                self.last,
                self.step,
            )

    def close(self) -> None:
        """Ends the trace if training was broken off."""
        if self._running:
            self._stop()

    def _stop(self):
        self._running, self._done = False, True
        try:
            tf.profiler.experimental.stop()
            logger.info("profile: steps %d:%d in %s", self.first, self.step, self.directory)
        except (OSError, tf.errors.OpError) as error:
            logger.warning("profile: cannot be written: %s", one_line(error))
