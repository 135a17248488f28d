"""The forward pass alone: evaluation on padded batches, exactly, and prediction."""

from __future__ import annotations

from tfaccel import batches, graph, step
from tfaccel import replicas as replicas_lib
from tfaccel.lazy import tf


class EvaluationStep:
    """Evaluates a compiled Keras model on padded batches, exactly.

    Args:
        model: A built, compiled model, made in the strategy's scope.
        strategy: Where its variables live: a strategy, `Replicas`, or None.
        jit: Compile the forward pass with XLA, per replica.
    """

    def __init__(self, model, strategy=None, *, jit: bool = False):
        self.model = model
        self.replicas = replicas_lib.of(strategy)
        self._forward = tf.function(self._loss_and_outputs, jit_compile=jit or None)
        self._steps = graph.own(self._run_steps)

    def __call__(self, iterator, steps: int) -> dict[str, tf.Tensor]:
        """Adds some batches to the model's metrics, and returns these.

        Args:
            iterator: Of what `TrainingStep` takes; in our own (x, y, real) the
                third is 1 for examples and 0 for padding.
            steps: How many batches.
        """
        with self.replicas.scope():
            return self._steps(iterator, tf.constant(steps))

    def _run_steps(self, iterator, steps):
        for _ in tf.range(steps):
            self.replicas.run(self._replica_step, next(iterator))
        return self.replicas.metrics(self.model)

    def _replica_step(self, element):
        if not isinstance(element, dict):
            x, y, real = element
            element = {"x": x, "y": y, "real": real}
        loss, y_pred = self._forward(element)
        share = self.replicas.loss_share
        step.count(self.model, batches.unpack(element), y_pred, loss, share)

    def _loss_and_outputs(self, element):
        model, batch = self.model, batches.unpack(element)
        weights = batches.loss_weights(model, batch, self.replicas.loss_share)
        y_pred = model(batch.x, training=False)
        return model.compute_loss(batch.x, batch.y, y_pred, weights, training=False), y_pred


class PredictionStep:
    """Runs a Keras model's forward pass, in the order of the input.

    Args:
        model: A built model, made in the strategy's scope.
        strategy: Where its variables live: a strategy, `Replicas`, or None.
        jit: Compile the forward pass with XLA, per replica.
    """

    def __init__(self, model, strategy=None, *, jit: bool = False):
        self.replicas = replicas_lib.of(strategy)
        forward = tf.function(lambda x: model(x, training=False), jit_compile=jit or None)

        def outputs(element):
            batch = batches.unpack(element)
            real = tf.ones([batch.rows]) if batch.real is None else batch.real
            return forward(batch.x), real

        def gathered(iterator):
            found = self.replicas.run(outputs, next(iterator))
            return tf.nest.map_structure(self.replicas.gather, found)

        self._run = graph.own(gathered)

    def __call__(self, iterator):
        """Returns the outputs for one global batch, as arrays without padding."""
        with self.replicas.scope():
            outputs, real = self._run(iterator)
        rows = real.numpy() > 0
        return tf.nest.map_structure(lambda part: part.numpy()[rows], outputs)
