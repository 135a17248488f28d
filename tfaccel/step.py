"""One optimizer update, in the one order that is right whatever is switched on.

Per replica: forward, loss (divided by the global batch), scaled, gradients,
summed over the micro-steps; then one all-reduce, unscaled, finite check, clipped,
weight decay, update, constraints, average of weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tfaccel import batches, fields, graph, input_wait
from tfaccel import replicas as replicas_lib
from tfaccel.errors import UserError
from tfaccel.fields import Flag, PositiveInt
from tfaccel.lazy import keras, tf
from tfaccel.log import logger
from tfaccel.models import batch_norm

ReduceDtype = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Options:
    """How steps are run; see `choose`."""

    jit: bool = False
    accumulation: int = 1
    reduce_dtype: str = "float32"


def choose(
    *,
    jit: Flag = "auto",
    accumulation: PositiveInt = 1,
    reduce_dtype: ReduceDtype = "float32",
) -> Options:
    """Returns how to run steps; "auto" is logged.

    Args:
        jit: Compile with XLA: forward and backward pass on each replica, and with
            a single one the update, too. "auto" leaves it off: whether XLA pays
            depends on the machine and the model, so it is for you to try, not for
            us to guess.
        accumulation: Micro-steps whose gradients are summed for one update.
        reduce_dtype: What gradients are sent between replicas as. "bfloat16"
            halves the traffic and rounds each gradient to 8 bits.
    """
    jit = fields.check(Flag, jit, "jit")
    fields.check(PositiveInt, accumulation, "accumulation")
    fields.check(ReduceDtype, reduce_dtype, "reduce_dtype")
    if jit == "auto":
        logger.info("jit: off (auto: not measured on this machine; try --config.jit=true)")
        jit = False
    else:
        logger.info("jit: %s (as asked)", "on" if jit else "off")
    return Options(jit, accumulation, reduce_dtype)


class Outcome(NamedTuple):
    """What is known after some steps in one compiled call.

    Asking for these one by one, outside of the call, takes longer than a small step.

    Args:
        metrics: The model's metrics, each a scalar.
        learning_rate: The rate of the next step, a scalar.
        times: float64 [steps, 2], when each batch was asked for and when it came (see
            `tfaccel.input_wait`), or [0, 2].
    """

    metrics: dict[str, tf.Tensor]
    learning_rate: tf.Tensor
    times: tf.Tensor


class TrainingStep:
    """Runs optimizer updates of a compiled Keras model, many in one call.

    Args:
        model: A built, compiled model, made in the strategy's scope.
        strategy: Where its variables live: a strategy, `Replicas`, or None.
        options: See `choose`.
        after_update: Called where replicas meet, after each update.
    """

    def __init__(self, model, strategy=None, options=None, after_update=None):
        self.model = model
        self.replicas = replicas_lib.of(strategy)
        self.options = options or Options()
        self.after_update = after_update
        self._share = self.options.accumulation * self.replicas.loss_share
        jit = self.options.jit
        # Without XLA not a function of its own, in which no collective could run.
        self._gradients = self._loss_and_gradients
        if jit:
            self._gradients = tf.function(self._loss_and_gradients, jit_compile=True)
        self._apply = self._apply_gradients
        # A collective, or a variable on several devices, is nothing for XLA.
        if jit and self.replicas.count == 1:
            self._apply = tf.function(self._apply_gradients, jit_compile=True)
        self._steps = graph.own(self._run_steps)
        batch_norm.check_step(
            model, self.replicas.count, self.options.jit, self.options.accumulation
        )
        batches.check_losses(model, self.replicas.count * self.options.accumulation)
        with self.replicas.scope():
            model.optimizer.build(model.trainable_variables)

    def trace(self, iterator) -> None:
        """Builds the graph, and with it every variable, without running it."""
        with self.replicas.scope():
            self._steps.get_concrete_function(iterator, tf.constant(1), True)

    def __call__(self, iterator, steps: int, timed: bool = True) -> Outcome:
        """Runs some updates; metrics of the model are up to date afterwards.

        Args:
            iterator: Distributed iterator of (x, y) or (x, y, sample_weight), or
                of what `tfaccel.data.foreign` makes.
            steps: How many updates, 1 or more; any number reuses one graph.
            timed: Whether to look at the clock, which takes some 30 microseconds a
                step.
        """
        with self.replicas.scope():
            return self._steps(iterator, tf.constant(steps), timed)

    def _run_steps(self, iterator, steps, timed):
        run = self._run_timed if timed else self._run_untimed
        with _already_reduced(self.model.optimizer):
            times = run(iterator, steps)
        rate = tf.convert_to_tensor(self.model.optimizer.learning_rate)
        return Outcome(self.replicas.metrics(self.model), rate, times)

    def _run_untimed(self, iterator, steps):
        for _ in tf.range(steps):
            self._update(next(iterator))
        return tf.zeros([0, 2], tf.float64)

    def _run_timed(self, iterator, steps):
        times = tf.TensorArray(tf.float64, steps, element_shape=[2])
        for index in tf.range(steps):
            batch, asked_and_came = input_wait.timed_next(iterator)
            times = times.write(index, asked_and_came)
            self._update(batch)
        return times.stack()

    def _update(self, batch):
        self.replicas.run(self._replica_step, batch)
        if self.after_update is not None:
            self.after_update()

    def _replica_step(self, element):
        self._apply(self._reduced(self._summed_gradients(element)))

    def _reduced(self, gradients):
        if self.replicas.count == 1:
            return gradients
        dtypes = [g.dtype for g in gradients]
        if self.options.reduce_dtype != "float32":
            gradients = [tf.cast(g, self.options.reduce_dtype) for g in gradients]
        sums = self.replicas.sum(gradients)
        return [tf.cast(g, dtype) for g, dtype in zip(sums, dtypes, strict=True)]

    def _apply_gradients(self, gradients):
        # As in Keras, a weight that the loss does not depend on is not even decayed.
        gradients = [None if i in self._unused else g for i, g in enumerate(gradients)]
        self.model.optimizer.apply(gradients, self.model.trainable_variables)

    def _summed_gradients(self, element):
        accumulation = self.options.accumulation
        if accumulation == 1:
            return self._micro_step(element)
        parts = batches.split(element, accumulation)
        sums = [tf.zeros(v.shape, v.dtype) for v in self.model.trainable_variables]

        def add_one(index, sums):
            part = tf.nest.map_structure(lambda t: t[index], parts)
            new = self._micro_step(part)
            return index + 1, [s + g for s, g in zip(sums, new, strict=True)]

        _, sums = tf.while_loop(
            lambda index, _: index < accumulation,
            add_one,
            (tf.constant(0), sums),
            parallel_iterations=1,
        )
        return sums

    def _micro_step(self, element):
        loss, y_pred, gradients = self._gradients(element)
        count(self.model, batches.unpack(element), y_pred, loss, self._share)
        return gradients

    def _loss_and_gradients(self, element):
        model, batch = self.model, batches.unpack(element)
        weights = batches.loss_weights(model, batch, self._share)
        with tf.GradientTape() as tape:
            y_pred = model(batch.x, training=True)
            # Keras has divided by the number of replicas already.
            loss = model.compute_loss(batch.x, batch.y, y_pred, weights, training=True)
            part = loss if self._share == 1 else loss / self._share
            scaled = model.optimizer.scale_loss(part)
        variables = model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        self._unused = {i for i, g in enumerate(gradients) if g is None}
        return loss, y_pred, [_dense(*pair) for pair in zip(gradients, variables, strict=True)]


def count(model: keras.Model, batch: batches.Batch, y_pred, loss, share: float) -> None:
    """Adds one part of a batch to a model's metrics, on a replica.

    Args:
        model: The compiled model.
        batch: The part.
        y_pred: What the model made of it.
        loss: As `compute_loss` gave it for the weights of `batches.loss_weights`.
        share: What those weights were made for.
    """
    loss_metric(model).update_state(
        _of_whole_batch(loss, batch, share), sample_weight=batch.examples()
    )
    values = (batch.x, batch.y, y_pred, batch.sample_weight)
    if batch.real is None:
        model.compute_metrics(*values)
        return

    def update():
        model.compute_metrics(*batches.only_real(batch, values))
        return True

    # Not every metric bears an empty batch.
    tf.cond(tf.reduce_any(batch.real > 0), update, lambda: False)


def build_metrics(model: keras.Model, replicas, element_spec) -> None:
    """Makes the variables of a model's metrics, which is impossible inside `tf.cond`.

    Args:
        model: The compiled model.
        replicas: Where it lives.
        element_spec: Of the dataset that it will be run on.
    """

    def one(spec):
        shape = [1, *(size or 64 for size in spec.shape[1:])] if spec.shape.rank else []
        return tf.zeros(shape, spec.dtype)

    batch = batches.unpack(tf.nest.map_structure(one, element_spec))

    def build():
        y_pred = model(batch.x, training=False)
        values = (batch.x, batch.y, y_pred, batch.sample_weight)
        model.compute_loss(*values, training=False)  # A loss by output has a metric, too.
        model.compute_metrics(*values)

    replicas.run_graph(build)
    model.reset_metrics()


def _of_whole_batch(loss, batch, share):
    """A part's loss such that its mean over all parts is that of the whole batch."""
    if loss.shape.rank:  # Keras logs the mean of a loss that is not reduced.
        return tf.reduce_mean(loss) * tf.cast(batch.full_scale() / share, loss.dtype)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return loss if replicas == 1 else loss * tf.cast(replicas, loss.dtype)


def loss_metric(model: keras.Model) -> keras.metrics.Metric:
    """Returns the model's own running mean of the loss."""
    return next(metric for metric in model.metrics if metric.name == "loss")


def _dense(gradient, variable):
    """A gradient as a plain tensor: zeros where the loss does not depend on it."""
    if gradient is None:
        return tf.zeros(variable.shape, variable.dtype)
    return tf.convert_to_tensor(gradient)


@contextlib.contextmanager
def _already_reduced(optimizer) -> Iterator[None]:
    """Switches off an optimizer's own all-reduce while gradients are applied.

    PRIVATE KERAS API (3.15): TFOptimizer._all_reduce_sum_gradients, the only
    way to hand `apply` gradients that are reduced already. It is put back, so
    that the user's next `fit` reduces again. tests/test_step.py tells when
    Keras changes.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "_all_reduce_sum_gradients"):
        raise UserError(
            f"Keras {keras.__version__} has changed how optimizers reduce gradients: "
            "install the version in tfaccel's requirements."
        )
    inner._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables
    try:
        yield
    finally:
        del inner._all_reduce_sum_gradients
