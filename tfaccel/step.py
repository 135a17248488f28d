"""One optimizer update, in the one order that is right whatever is switched on.

Per replica: forward, loss (divided by the global batch), scaled, gradients,
summed over the micro-steps; then one all-reduce, unscaled, finite check, clipped,
weight decay, update, constraints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from tfaccel import fields, input_wait
from tfaccel.errors import UserError
from tfaccel.fields import Flag, PositiveInt
from tfaccel.lazy import keras, tf
from tfaccel.log import logger


def choose(*, jit: Flag = "auto", accumulation: PositiveInt = 1) -> tuple[bool, int]:
    """Returns (whether to compile with XLA, micro-steps a step); "auto" is logged.

    Args:
        jit: Compile forward and backward pass with XLA. "auto" leaves it off:
            whether XLA pays depends on the machine and the model, so it is for
            you to try, not for us to guess.
        accumulation: Micro-steps whose gradients are summed for one update.
    """
    jit = fields.check(Flag, jit, "jit")
    fields.check(PositiveInt, accumulation, "accumulation")
    if jit == "auto":
        logger.info("jit: off (auto: not measured on this machine; try --config.jit=true)")
        return False, accumulation
    logger.info("jit: %s (as asked)", "on" if jit else "off")
    return jit, accumulation


class TrainingStep:
    """Runs optimizer updates of a compiled Keras model, many in one call.

    Args:
        model: A built, compiled model, made in `strategy.scope()`.
        strategy: Where its variables live.
        jit: Compile forward and backward pass with XLA, per replica.
        accumulation: Micro-steps in a step; they divide a replica's batch.
    """

    def __init__(self, model, strategy, *, jit: bool = False, accumulation: int = 1):
        self.model = model
        self.strategy = strategy
        self.accumulation = accumulation
        self._gradients = tf.function(self._loss_and_gradients, jit_compile=jit or None)
        self._steps = tf.function(self._run_steps)
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)

    def trace(self, iterator) -> None:
        """Builds the graph, and with it every variable, without running it."""
        with self.strategy.scope():
            self._steps.get_concrete_function(iterator, tf.constant(1))

    def __call__(self, iterator, steps: int) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Runs some updates; metrics of the model are up to date afterwards.

        Args:
            iterator: Distributed iterator of (x, y) or (x, y, sample_weight).
            steps: How many updates, 1 or more; any number reuses one graph.

        Returns:
            (the model's metrics; float64 [steps, 2]: when each batch was asked for and
            when it came, see `tfaccel.input_wait`).
        """
        with self.strategy.scope():
            return self._steps(iterator, tf.constant(steps))

    def _run_steps(self, iterator, steps):
        times = tf.TensorArray(tf.float64, steps, element_shape=[2])
        with _already_reduced(self.model.optimizer):
            for index in tf.range(steps):
                batch, asked_and_came = input_wait.timed_next(iterator)
                times = times.write(index, asked_and_came)
                self.strategy.run(self._replica_step, args=(batch,))
        # Here, because asking for them op by op takes longer than a small step.
        return self.model.get_metrics_result(), times.stack()

    def _replica_step(self, batch):
        gradients = self._summed_gradients(batch)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # As in Keras, a weight that the loss does not depend on is not even decayed.
        gradients = [None if i in self._unused else g for i, g in enumerate(gradients)]
        self.model.optimizer.apply(gradients, self.model.trainable_variables)

    def _summed_gradients(self, batch):
        if self.accumulation == 1:
            return self._micro_step(batch)
        parts = tf.nest.map_structure(self._split, batch)
        sums = [tf.zeros(v.shape, v.dtype) for v in self.model.trainable_variables]

        def add_one(index, sums):
            part = tf.nest.map_structure(lambda t: t[index], parts)
            new = self._micro_step(part)
            return index + 1, [s + g for s, g in zip(sums, new, strict=True)]

        _, sums = tf.while_loop(
            lambda index, _: index < self.accumulation,
            add_one,
            (tf.constant(0), sums),
            parallel_iterations=1,
        )
        return sums

    def _split(self, tensor):
        shape = [self.accumulation, -1, *tensor.shape[1:]]
        return tf.reshape(tensor, shape)

    def _micro_step(self, batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        loss, y_pred, gradients = self._gradients(x, y, sample_weight)
        size = tf.shape(tf.nest.flatten(x)[0])[0]
        loss_metric(self.model).update_state(_per_replica(loss), sample_weight=size)
        self.model.compute_metrics(x, y, y_pred, sample_weight)
        return gradients

    def _loss_and_gradients(self, x, y, sample_weight):
        model = self.model
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            # Keras has divided by the number of replicas already.
            loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss / self.accumulation)
        variables = model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        self._unused = {i for i, g in enumerate(gradients) if g is None}
        return loss, y_pred, [_dense(*pair) for pair in zip(gradients, variables, strict=True)]


class EvaluationStep:
    """Evaluates a compiled Keras model on padded batches, exactly.

    Args:
        model: A built, compiled model, made in `strategy.scope()`; metrics must
            be `weighted_metrics`, as padding has sample weight 0.
        strategy: Where its variables live.
        jit: Compile the forward pass with XLA, per replica.
    """

    def __init__(self, model, strategy, *, jit: bool = False):
        self.model = model
        self.strategy = strategy
        self._forward = tf.function(self._loss_and_outputs, jit_compile=jit or None)
        self._steps = tf.function(self._run_steps)

    def __call__(self, iterator, steps: int) -> None:
        """Adds some batches of (x, y, sample_weight) to the model's metrics."""
        with self.strategy.scope():
            self._steps(iterator, tf.constant(steps))

    def _run_steps(self, iterator, steps):
        for _ in tf.range(steps):
            self.strategy.run(self._replica_step, args=(next(iterator),))

    def _replica_step(self, batch):
        x, y, sample_weight = batch
        loss, y_pred = self._forward(x, y, sample_weight)
        weight = tf.reduce_sum(sample_weight)
        loss_metric(self.model).update_state(loss, sample_weight=weight)
        self.model.compute_metrics(x, y, y_pred, sample_weight)

    def _loss_and_outputs(self, x, y, sample_weight):
        """Returns the mean loss over real examples, plus regularisation, and outputs."""
        model = self.model
        y_pred = model(x, training=False)
        total = _per_replica(model.compute_loss(x, y, y_pred, sample_weight, training=False))
        penalty = tf.add_n([tf.reduce_sum(loss) for loss in model.losses] or [0.0])
        padded, real = (
            tf.cast(tf.size(sample_weight), tf.float32),
            tf.reduce_sum(sample_weight),
        )
        return tf.math.divide_no_nan((total - penalty) * padded, real) + penalty, y_pred


def average_statistics(model, strategy) -> None:
    """Makes BatchNorm's moving statistics the average over all replicas.

    Each replica keeps its own while training, and only the first would be
    saved. Variables that agree already keep their exact value.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    variables = [v.value for v in model.non_trainable_variables if v.dtype.startswith("float")]

    def average():
        context = tf.distribute.get_replica_context()
        first = context.replica_id_in_sync_group == 0
        leading = context.all_reduce(
            tf.distribute.ReduceOp.SUM,
            [tf.where(first, v, tf.zeros_like(v)) for v in variables],
        )
        changes = context.all_reduce(
            tf.distribute.ReduceOp.MEAN,
            [v - lead for v, lead in zip(variables, leading, strict=True)],
        )
        for v, lead, change in zip(variables, leading, changes, strict=True):
            v.assign(lead + change)

    if variables:
        with strategy.scope():
            strategy.run(tf.function(average))


def separate_dropout(model, strategy) -> None:
    """Gives each replica its own Dropout masks; the first keeps the saved ones.

    Keras's seed generators start alike on every replica, which would draw the
    same mask for every part of the batch.
    """
    states = seed_states(model)
    if strategy.num_replicas_in_sync == 1 or not states:
        return
    saved = np.stack([state.numpy() for state in states])
    table = np.stack([saved] * strategy.num_replicas_in_sync)
    for replica in range(1, len(table)):
        for state in table[replica]:
            state[0] = np.random.SeedSequence([state[0], replica]).generate_state(1)[0]

    def assign():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        own = tf.gather(tf.constant(table), replica)
        for index, state in enumerate(states):
            state.value.assign(own[index])

    with strategy.scope():
        strategy.run(tf.function(assign))


def seed_states(model) -> list:
    """Returns the states of the model's random generators, such as Dropout's."""
    return [v for v in model.variables if v.name == "seed_generator_state"]


def loss_metric(model) -> keras.metrics.Metric:
    """Returns the model's own running mean of the loss."""
    return next(metric for metric in model.metrics if metric.name == "loss")


def _dense(gradient, variable):
    """A gradient as a plain tensor: zeros where the loss does not depend on it."""
    if gradient is None:
        return tf.zeros(variable.shape, variable.dtype)
    return tf.convert_to_tensor(gradient)


def _per_replica(loss):
    """Undoes Keras's division of a loss by the number of replicas."""
    return loss * tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)


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
