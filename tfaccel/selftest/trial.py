"""One combination, trained for some updates, against plain Keras on one device."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from tfaccel import ema, precision, pruning, replica_state, replicas, training
from tfaccel.lazy import keras, tf
from tfaccel.selftest.cases import Case

UPDATES = 10
BATCH = 16
DECAY = 0.9
CLIP = 0.1
# Of the weights' and metrics' absolute difference. float32: sums in another order.
# Half precisions round activations and gradients of each part apart, with 8 bits
# (bfloat16: 2**-8 = 4e-3) or 11 (float16: 2**-11 = 5e-4) a value, and a weight moves
# by some 0.2 over the ten updates.
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 2e-2, "mixed_float16": 2e-3}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a training ends with.

    Args:
        weights: Of the model, in Keras's order.
        state: The optimizer's slots.
        averages: Of the weights.
        logs: Metrics over all updates.
    """

    weights: list[np.ndarray]
    state: list[np.ndarray]
    averages: list[np.ndarray]
    logs: dict[str, float]

    @property
    def zeros(self) -> list[np.ndarray]:
        """Where weights of two dimensions or more are zero."""
        return [weights == 0 for weights in self.weights if weights.ndim > 1]

    def difference(self, other: Outcome) -> float:
        """Returns the largest absolute difference of any number; zeros must be the same."""
        if not all(np.array_equal(*both) for both in zip(self.zeros, other.zeros, strict=True)):
            return float("inf")
        pairs = [
            *zip(self.weights, other.weights, strict=True),
            *zip(self.state, other.state, strict=True),
            *zip(self.averages, other.averages, strict=False),
            *((self.logs[name], other.logs[name]) for name in other.logs),
        ]
        return float(max(np.max(np.abs(np.subtract(a, b))) for a, b in pairs))


def data(count: int = UPDATES * BATCH) -> tuple[np.ndarray, np.ndarray]:
    """Returns (images float32 [count, 8, 8, 3], labels float32 [count, 1]): two classes."""
    random = np.random.default_rng(0)
    images = random.random((count, 8, 8, 3), np.float32)
    labels = (images.mean(axis=(1, 2, 3)) > 0.5).astype(np.float32)
    return images, labels[:, None]


def dataset() -> tf.data.Dataset:
    """Returns the global batches of `UPDATES` updates."""
    return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH, drop_remainder=True)


def build(case: Case, norm: Any = None) -> keras.Model:
    """Returns the compiled model; call it in the strategy's scope.

    A convolution, a frozen BatchNorm and a LayerNorm (or `norm` instead), and a
    regularised Dense layer.
    """
    keras.utils.set_random_seed(1)
    with precision.scope(keras.DTypePolicy(case.precision)):
        inputs = keras.Input((8, 8, 3))
        x = keras.layers.Conv2D(6, 3, strides=2)(inputs)
        if norm is None:
            frozen = keras.layers.BatchNormalization()
            frozen.trainable = False
            norm = keras.layers.LayerNormalization()
            x = frozen(x)
        x = keras.layers.Flatten()(keras.layers.ReLU()(norm(x)))
        penalty = keras.regularizers.L2(1e-2)
        outputs = keras.layers.Dense(1, dtype="float32", kernel_regularizer=penalty)(x)
    model = keras.Model(inputs, outputs)
    if case.pruning:
        _set_apart(model)
    clip = {"global_clipnorm": CLIP} if case.clip else {}
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=1e-3, **clip)
    if case.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10)
    model.compile(
        optimizer,
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0),
            keras.metrics.Precision(name="precision", thresholds=0.0),
            keras.metrics.AUC(name="auc", from_logits=True),
            _mean_square_metric(),
        ],
        auto_scale_loss=False,
    )
    return model


def run(case: Case, strategy, norm: Any = None) -> Outcome:
    """Trains with `tfaccel.fit` as a case says."""
    home = replicas.of(strategy)
    with home.scope():
        model = build(case, norm() if norm else None)
        average = ema.build(model, decay=DECAY) if case.ema else None
    history = training.fit(
        model,
        dataset(),
        strategy=strategy,
        accumulation=case.accumulation,
        jit=case.jit,
        ema=average,
        callbacks=_pruners(case, model),
    )
    replica_state.MovingStatistics(model, home).average()
    averages = [v.numpy() for v in average.variables[1:]] if average else []
    return _outcome(model, averages, {k: v[-1] for k, v in history.history.items()})


@functools.cache
def reference(precision: str, clip: bool, pruned: bool = False) -> Outcome:
    """Trains with Keras's own fit on one device, the average reckoned apart."""
    case = Case(precision=precision, clip=clip, pruning=pruned)
    model = build(case)
    averages = [np.float64(v.numpy()) for v in model.trainable_variables]

    def average(batch, logs):
        decay = min(DECAY, (2 + batch) / (11 + batch))
        for old, variable in zip(averages, model.trainable_variables, strict=True):
            old += (1 - decay) * (variable.numpy() - old)

    averaging = keras.callbacks.LambdaCallback(on_train_batch_end=average)
    added = [averaging, *_pruners(case, model)]
    # A dataset is not shuffled by Keras, which would warn of it.
    history = model.fit(dataset(), verbose=0, shuffle=False, callbacks=added)
    return _outcome(model, averages, {k: v[-1] for k, v in history.history.items()})


def difference(case: Case, strategy) -> float:
    """Returns by how much a case differs from plain Keras on one device."""
    return run(case, strategy).difference(reference(case.precision, case.clip, case.pruning))


def _pruners(case: Case, model) -> list:
    if not case.pruning:
        return []
    when = {"begin": "1st", "end": "8st", "frequency": "2st"}
    return [pruning.prune(model, final_sparsity=0.5, schedule="constant", **when)]


def _set_apart(model) -> None:
    """Makes half of each kernel so small that rounding cannot change which half it is.

    Weights go through one update before they are pruned.
    """
    for variable in model.trainable_variables:
        if variable.path.endswith("kernel"):
            kernel = variable.numpy()
            small = np.abs(kernel) <= np.median(np.abs(kernel))
            variable.assign(np.where(small, 0.01 * kernel, kernel + 0.2 * np.sign(kernel)))


def _outcome(model, averages, logs) -> Outcome:
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    state = [v.numpy() for v in optimizer.variables if v.dtype == "float32" and v.shape]
    return Outcome([np.array(w) for w in model.get_weights()], state, averages, logs)


def _mean_square_metric() -> keras.metrics.Metric:
    """A user's own metric: the mean square of the outputs."""

    def mean_square(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred), axis=-1)

    return keras.metrics.MeanMetricWrapper(mean_square, name="mean_square")
