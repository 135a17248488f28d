"""An exponential moving average of the weights, which often generalises better."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfaccel import graph, pruning
from tfaccel.errors import UserError
from tfaccel.fields import Share
from tfaccel.lazy import keras, tf
from tfaccel.log import logger


def check(*, decay: Share, apply: bool) -> None:
    """Refuses an average that would never move."""
    del apply
    if decay == 1:
        raise UserError(
            "received ema.decay=1.0, expected less: the average would stay at the first "
            "weights. Try 0.999, or 0 for no average."
        )


def build(model: keras.Model, *, decay: Share = 0.0, apply: bool = True) -> Average | None:
    """Returns the average of a model's weights, or None if decay is 0.

    Args:
        model: The built model; call this in its strategy's scope.
        decay: Weight of the past, such as 0.999: about the last 1 / (1 - decay)
            updates count. Over the first updates it is less, (1 + n) / (10 + n),
            so that the untrained weights are soon forgotten (as in
            `tf.train.ExponentialMovingAverage`).
        apply: Evaluate and export the averaged weights instead of the last ones.

    Example:
        average = tfaccel.ema.build(model, decay=0.999)
        tfaccel.fit(model, dataset, epochs=3, ema=average)
        with average.applied():
            model.save("averaged.keras")
    """
    check(decay=decay, apply=apply)
    if not decay:
        return None
    logger.info(
        "ema: decay %g; %s weights are evaluated and exported",
        decay,
        "averaged" if apply else "the last",
    )
    return Average(model, decay, apply)


class Average:
    """The moving average of a model's trainable weights; see `build`."""

    def __init__(self, model: keras.Model, decay: float, apply: bool = True):
        self.model = model
        self.decay = decay
        self.apply = apply
        self._seen = keras.Variable(0, dtype="int32", trainable=False, name="ema_updates")
        self._averages = [
            keras.Variable(
                keras.ops.convert_to_tensor(v),
                dtype=v.dtype,
                trainable=False,
                name=f"{v.name}_average",
            )
            for v in model.trainable_variables
        ]
        self._swap = graph.own(self._swapped)

    @property
    def variables(self) -> list[keras.Variable]:
        """What a checkpoint must hold."""
        return [self._seen, *self._averages]

    def update(self) -> None:
        """Takes in the weights after an update; does nothing if it was skipped."""
        extended = tf.distribute.get_strategy().extended
        updates = tf.cast(tf.convert_to_tensor(self.model.optimizer.iterations), tf.int32)
        moved = updates != tf.convert_to_tensor(self._seen)
        count = tf.cast(updates, tf.float32)
        decay = tf.minimum(self.decay, (1 + count) / (10 + count))
        rate = tf.where(moved, 1 - decay, 0.0)

        def change(average, weight, rate):
            average.assign_add(tf.cast(rate, average.dtype) * (weight - average))

        for average, weight in zip(self._averages, self.model.trainable_variables, strict=True):
            extended.update(average.value, change, args=(weight.value, rate))
        extended.update(self._seen.value, lambda seen, new: seen.assign(new), args=(updates,))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged weights for a while, then its own again."""
        with self.model.distribute_strategy.scope():
            self._swap()
        try:
            yield
        finally:
            with self.model.distribute_strategy.scope():
                self._swap()

    def evaluating(self) -> contextlib.AbstractContextManager:
        """Returns `applied`, or nothing at all if `apply` is False."""
        return self.applied() if self.apply else contextlib.nullcontext()

    def _swapped(self):
        for average, weight in zip(self._averages, self.model.trainable_variables, strict=True):
            old = tf.identity(weight.value)
            # The average still remembers what weights were before they were pruned.
            weight.assign(pruning.masked(weight, tf.identity(average.value)))
            average.assign(old)


def evaluating(average: Average | None) -> contextlib.AbstractContextManager:
    """Returns the context in which a model is evaluated and exported."""
    return average.evaluating() if average else contextlib.nullcontext()
