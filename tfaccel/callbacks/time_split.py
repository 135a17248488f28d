"""Where a run's time goes."""

import time

import keras

PARTS = ("input_wait", "step", "evaluation", "checkpoint", "compile", "other")


class TimeSplit(keras.callbacks.Callback):
    """Shares out the time of `fit` among its parts, in `seconds`.

    Put it first in the list, so that what other callbacks take counts as "other".
    "compile" is tracing and the first call. A stock `model.fit` does not tell how
    long a step waited for its batch, so there "input_wait" stays 0 and the wait is
    part of "step"; nor does it know of checkpoints, which are "other".

    Example:
        split = tfaccel.callbacks.TimeSplit()
        model.fit(x, y, validation_data=(x, y), callbacks=[split])
        print(split.seconds["evaluation"], split.seconds["step"])
    """

    remembered = ("seconds", "knows_input_wait")

    def __init__(self):
        super().__init__()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.knows_input_wait = False

    def on_spent(self, part: str, seconds: float, instead_of: str = "") -> None:
        """Is told by `tfaccel.fit` of time that Keras's methods do not show.

        Args:
            part: What it was spent on.
            seconds: How long.
            instead_of: The part it would be counted as otherwise, if any.
        """
        if part == "input_wait":
            self.knows_input_wait = True
            if not self._compiled:
                return  # The whole first call is "compile".
        self.seconds[part] += seconds
        if instead_of:
            self.seconds[instead_of] -= seconds

    def mark(self, part: str) -> None:
        """Counts the time since the last mark as a part's."""
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self._last = now

    def on_train_begin(self, logs=None):
        """Starts the clock."""
        self._compiled = False
        self._last = time.perf_counter()

    def on_epoch_begin(self, epoch, logs=None):
        """Counts what lay between the epochs."""
        self.mark("other")

    def on_train_batch_begin(self, batch, logs=None):
        """All since the last step was something else."""
        self.mark("other")

    def on_train_batch_end(self, batch, logs=None):
        """Counts the step."""
        self.mark("step" if self._compiled else "compile")
        self._compiled = True

    def on_test_begin(self, logs=None):
        """All since the last step was something else."""
        self.mark("other")

    def on_test_end(self, logs=None):
        """Counts the evaluation."""
        self.mark("evaluation")

    def on_epoch_end(self, epoch, logs=None):
        """Counts what is left of the epoch."""
        self.mark("other")

    def on_train_end(self, logs=None):
        """Counts what is left."""
        self.mark("other")
