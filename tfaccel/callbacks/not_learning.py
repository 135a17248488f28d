"""A warning for a run that does not learn."""

import logging
import math

import keras

logger = logging.getLogger("tfaccel")


class NotLearning(keras.callbacks.Callback):
    """Warns, once, when the loss stays where guessing would put it.

    A classifier that gives every class the same probability has the cross-entropy
    ln(classes), with smoothed or mixed labels, too. A network whose units have died
    sits there for good, and looks like one that is merely slow.

    Args:
        steps: How long the loss must have stayed there.
        tolerance: How far from ln(classes) counts as there, relative.
        classes: How many classes there are; by default the model's outputs.

    Example:
        model.fit(x, y, callbacks=[tfaccel.callbacks.NotLearning(steps=500)])
    """

    chief_only = True
    remembered = ("_count", "_total", "_stuck", "_warned")

    def __init__(self, steps: int = 500, tolerance: float = 0.01, classes: int | None = None):
        super().__init__()
        self.steps = steps
        self.tolerance = tolerance
        self.classes = classes

    def on_train_begin(self, logs=None):
        """Forgets what was before."""
        self._stuck, self._warned = 0, False
        self._guessing = None  # known once the model is built
        self._count, self._total = 0, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the epoch's sums, from which the loss of single steps is told."""
        self._count, self._total = 0, 0.0

    def on_train_batch_end(self, batch, logs=None):
        """Looks at the mean loss of some steps, a tenth of `steps` or more."""
        count = batch + 1
        if self._warned or "loss" not in (logs or {}):
            return
        # Keras's logs are means since the epoch began.
        new, total = count - self._count, logs["loss"] * count
        if new < max(1, self.steps // 10):
            return
        loss = (total - self._total) / new
        self._count, self._total = count, total
        if self._guessing is None:
            self._guessing = math.log(self.classes or self.model.output_shape[-1])
        near = abs(loss - self._guessing) <= self.tolerance * self._guessing
        self._stuck = self._stuck + new if near else 0
        if self._stuck >= self.steps:
            self._warned = True
            self._warn(self._guessing)

    def _warn(self, guessing):
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        logger.warning(
            "not learning: the loss has been at ln(%d) = %.3f, that of guessing, for %d steps. "
            "Try a learning rate ten times smaller than now (%.3g) or a warm-up; images "
            "normalised as the model expects (data.normalize); batch normalisation, without "
            "which deep plain networks often do not start; and look whether labels belong to "
            "images (python -m tfaccel.data --config=... --show=16).",
            round(math.exp(guessing)), guessing, self._stuck, rate,
        )  # fmt: skip
