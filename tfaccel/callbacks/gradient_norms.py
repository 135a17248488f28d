"""The norm of each layer's gradient, every so many steps."""

from __future__ import annotations

import tensorflow as tf

from tfaccel.callbacks.measurement import Measurement


class GradientNorms(Measurement):
    """Measures the gradients that the optimizer is given, by layer.

    While training it stands before the optimizer's `apply`. On every n-th update the
    compiled step computes each layer's 2-norm and keeps it in a variable; on the
    others it costs one comparison. The variable is read, and so the device waited
    for, when a call has ended in which such an update lay: in `tfaccel.fit` those
    steps end a call. Norms are taken before clipping and, with a loss scale, after
    unscaling; updates that a loss scale skips do not count. In `tfaccel.fit`
    gradients are those of the global batch; in a stock `fit` under a strategy, of
    the first replica's part.

    Args:
        every: Updates between measurements.

    Example:
        norms = tfaccel.callbacks.GradientNorms(every=10)
        model.fit(x, y, callbacks=[norms])
        print(norms.latest()["gradient_norm/dense"])
    """

    def __init__(self, every: int = 100):
        super().__init__()
        self.every = every
        self._names, self._norms = [], None
        self._updates = 0
        self._latest = {}

    def latest(self) -> dict[str, float]:
        """Returns the newest norms as "gradient_norm/LAYER"; empty before the first."""
        return dict(self._latest)

    def next_boundary(self, step: int) -> int:
        """Returns the next step after `step` at which norms are taken."""
        return (step // self.every + 1) * self.every

    def set_model(self, model):
        """Steps in before the optimizer's `apply`, until training ends."""
        super().set_model(model)
        self._optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self._names = list(dict.fromkeys(map(self._layer, model.trainable_variables)))
        with model.distribute_strategy.scope():
            self._norms = tf.Variable(
                tf.fill([len(self._names)], float("nan")),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self._optimizer.apply = _Measured(self._optimizer, self._record)

    def on_train_begin(self, logs=None):
        """Has a stock `fit` trace its step anew, in case an earlier one did."""
        self._updates = int(self._optimizer.iterations.numpy())
        if self.model.train_function is not None:
            self.model.make_train_function(force=True)

    def on_train_batch_begin(self, batch, logs=None):
        """Notes where the coming steps start."""
        self._batch_start = batch

    def on_train_batch_end(self, batch, logs=None):
        """Reads the norms if new ones are due."""
        before = self._updates
        self._updates += batch + 1 - self._batch_start
        if self._updates // self.every > before // self.every:
            names = [f"gradient_norm/{name}" for name in self._names]
            self._latest = dict(zip(names, self._norms.numpy().tolist(), strict=True))

    def on_train_end(self, logs=None):
        """Leaves the optimizer as it was."""
        del self._optimizer.apply

    def _layer(self, variable) -> str:
        """A variable's layer: "conv/kernel" and "my_model/conv/kernel" are of "conv"."""
        layer = variable.path.rpartition("/")[0] or variable.path
        return layer.removeprefix(f"{self.model.name}/")

    def _record(self, gradients, variables):
        def measure():
            squares = dict.fromkeys(self._names, tf.constant(0.0))
            for gradient, variable in zip(gradients, variables, strict=True):
                if gradient is not None:
                    dense = tf.cast(tf.convert_to_tensor(gradient), tf.float32)
                    squares[self._layer(variable)] += tf.reduce_sum(tf.square(dense))
            self._norms.assign(tf.sqrt(tf.stack(list(squares.values()))))
            return True

        updates = tf.convert_to_tensor(self._optimizer.iterations.value) + 1
        tf.cond(updates % self.every == 0, measure, lambda: False)


class _Measured:
    """An optimizer's `apply` that shows the gradients to a function first."""

    def __init__(self, optimizer, record):
        self._apply = type(optimizer).apply.__get__(optimizer)
        self._record = record

    def __call__(self, grads, trainable_variables=None):
        grads = list(grads)
        variables = list(trainable_variables)
        self._record(grads, variables)
        self._apply(grads, variables)
