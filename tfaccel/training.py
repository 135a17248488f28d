"""fit, evaluate and predict for any compiled Keras model and any dataset.

One-line replacements for the methods of `keras.Model`; `tfaccel.train` runs the
same loop with our own data.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import ema as ema_lib
from tfaccel import inference_step, loop, step
from tfaccel import plan as plan_lib
from tfaccel import replicas as replicas_lib
from tfaccel.callbacks.writers import for_worker
from tfaccel.checkpoint import Checkpointer
from tfaccel.data.foreign import ForeignData, from_arrays
from tfaccel.data.pipeline import EvaluationData, TrainingData
from tfaccel.errors import UserError
from tfaccel.fields import PositiveInt
from tfaccel.lazy import keras, tf
from tfaccel.log import logger


def fit(
    model: keras.Model,
    dataset: Any,
    *,
    epochs: PositiveInt = 1,
    validation_data: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    strategy: tf.distribute.Strategy | None = None,
    accumulation: PositiveInt = 1,
    jit: bool | str = "auto",
    reduce_dtype: str = "float32",
    ema: ema_lib.Average | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: str = "1ep",
    batch_size: PositiveInt = 32,
    seed: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    class_weight: dict[int, float] | None = None,
) -> keras.callbacks.History:
    """Trains a compiled Keras model on any data, as `model.fit` does.

    However many replicas and micro-steps share a batch, the model is trained as a
    single device would train it on the whole batch.

    Args:
        model: A compiled model, made in the strategy's scope.
        dataset: A `tf.data.Dataset` of batches of x, (x, y) or (x, y,
            sample_weight); or a tuple of arrays likewise; or our `TrainingData`.
            Its batch is the global batch, of which each replica and micro-step
            takes its part.
        epochs: How many times to go through the dataset.
        validation_data: What to evaluate on after each epoch: as `dataset`, or
            our `EvaluationData`.
        callbacks: Keras callbacks. Batch methods are called once a compiled call,
            as with Keras's `steps_per_execution`.
        strategy: Where the model lives; by default the strategy it was made in.
        accumulation: Micro-steps whose gradients are summed for one update.
        jit: Compile with XLA: True, False or "auto"; see `tfaccel.step.choose`.
        reduce_dtype: What gradients travel between replicas as: "float32" or
            "bfloat16".
        ema: The average of weights to keep; see `tfaccel.ema.build`.
        checkpoint_dir: Save here, and go on from the newest checkpoint found. A
            dataset that is not ours starts its epoch anew then, less the batches
            that were taken, in whatever order it gives now.
        checkpoint_every: How often to save, such as "1ep" or "500st".
        batch_size: For arrays: examples a step takes.
        seed: For arrays: of their order, which is another in each epoch.
        steps_per_epoch: Steps an epoch; all of the dataset if None.
        validation_steps: Batches to evaluate on; all if None.
        class_weight: Weight of each class in the loss, by its number.

    Returns:
        Keras's History.

    Raises:
        UserError: If model, dataset and options do not go together.

    Example:
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = tfaccel.fit(model, dataset, epochs=3, accumulation=4)
    """
    replicas = _replicas(model, strategy)
    options = step.choose(jit=jit, accumulation=accumulation, reduce_dtype=reduce_dtype)
    data = _training_data(
        dataset, replicas, accumulation, batch_size, seed, steps_per_epoch, class_weight
    )
    validation = None
    if validation_data is not None:
        validation = _evaluation_data(validation_data, replicas, batch_size, validation_steps)
    _prepare(model, data, replicas)
    plan = _plan(data, epochs)
    checkpointer = None
    if checkpoint_dir is not None:
        checkpointer = Checkpointer(checkpoint_dir, plan, every=checkpoint_every)
        if isinstance(data, ForeignData) and checkpointer.newest():
            logger.warning(
                "going on from a checkpoint with a dataset that is not ours: its order may "
                "be another than before, so the run is not exactly the uninterrupted one"
            )
    history = loop.fit(
        model,
        data,
        plan,
        strategy=replicas,
        validation=validation,
        callbacks=for_worker(callbacks, replicas),
        checkpointer=checkpointer,
        options=options,
        ema=ema,
    )
    # As Keras's own fit does at its end.
    model.optimizer.finalize_variable_values(model.trainable_weights)
    return history


def evaluate(
    model: keras.Model,
    dataset: Any,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    strategy: tf.distribute.Strategy | None = None,
    jit: bool = False,
    batch_size: PositiveInt = 32,
    steps: int | None = None,
) -> dict[str, float]:
    """Returns a compiled model's loss and metrics, as `model.evaluate` does.

    Each example counts once, whatever the number of replicas and the batch size.

    Args:
        model: A compiled model, made in the strategy's scope.
        dataset: As for `fit`, or our `EvaluationData`.
        callbacks: Keras callbacks, for their test methods.
        strategy: Where the model lives; by default the strategy it was made in.
        jit: Compile with XLA, per replica.
        batch_size: For arrays: examples a batch.
        steps: Batches to evaluate on; all if None.

    Example:
        tfaccel.evaluate(model, (x_test, y_test))["accuracy"]
    """
    replicas = _replicas(model, strategy)
    data = _evaluation_data(dataset, replicas, batch_size, steps)
    _prepare(model, data, replicas)
    return loop.evaluate(model, data, strategy=replicas, jit=jit, callbacks=callbacks)


def predict(
    model: keras.Model,
    dataset: Any,
    *,
    strategy: tf.distribute.Strategy | None = None,
    jit: bool = False,
    batch_size: PositiveInt = 32,
    steps: int | None = None,
) -> Any:
    """Returns a model's outputs in the order of the input, as `model.predict` does.

    Args:
        model: A model made in the strategy's scope; it need not be compiled.
        dataset: As for `fit`, or an array of inputs; targets are not looked at.
        strategy: Where the model lives; by default the strategy it was made in.
        jit: Compile with XLA, per replica.
        batch_size: For arrays: examples a batch.
        steps: Batches to predict; all if None.

    Returns:
        An array [n, ...], or the structure of arrays that the model returns; on
        several workers, the whole of it on each.
    """
    replicas = _replicas(model, strategy)
    data = _evaluation_data(dataset, replicas, batch_size, steps)
    prediction = inference_step.PredictionStep(model, replicas, jit=jit)
    iterator = replicas.iterator(replicas.dataset(lambda shard: data.dataset(shard=shard)))
    parts = [prediction(iterator) for _ in range(data.steps)]
    return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def _replicas(model, strategy) -> replicas_lib.Replicas:
    home = model.distribute_strategy
    if isinstance(strategy, replicas_lib.Replicas):
        return strategy
    if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
        raise UserError(
            f"received strategy={strategy!r}, expected a tf.distribute.Strategy: make one "
            f"with tfaccel.distribution.build(strategy={strategy!r}), and the model in its "
            "scope."
        )
    if strategy is not None and strategy.num_replicas_in_sync > 1 and strategy is not home:
        raise UserError(
            f"received a strategy of {strategy.num_replicas_in_sync} replicas, but the model "
            "was not made in its scope: make and compile it in `with strategy.scope():`."
        )
    return replicas_lib.of(home if strategy is None else strategy)


def _training_data(dataset, replicas, accumulation, batch_size, seed, steps, class_weight):
    if isinstance(dataset, TrainingData):
        if class_weight is not None or steps is not None:
            raise UserError(
                "received class_weight or steps_per_epoch with TrainingData, expected them "
                "for a tf.data.Dataset or arrays only."
            )
        return dataset
    data = ForeignData(
        _as_dataset(dataset, batch_size, seed),
        replicas.count * accumulation,
        steps=steps,
        class_weight=class_weight,
    )
    if replicas.workers > 1:
        replicas.check_alike(data.steps, "the number of batches")
        replicas.check_alike(data.fingerprint(), "the first batch of the dataset")
    return data


def _evaluation_data(dataset, replicas, batch_size, steps):
    if isinstance(dataset, EvaluationData):
        return dataset
    return ForeignData(_as_dataset(dataset, batch_size, None), replicas.count, steps=steps)


def _as_dataset(dataset, batch_size, seed):
    if isinstance(dataset, tf.data.Dataset):
        return dataset
    arrays = dataset if isinstance(dataset, tuple) else (dataset,)
    leaves = tf.nest.flatten(arrays)
    if not leaves or not all(hasattr(leaf, "__array__") for leaf in leaves):
        raise UserError(
            f"received data of type {type(dataset).__name__}, expected a tf.data.Dataset of "
            "batches, or a tuple of arrays (x, y)."
        )
    return from_arrays(*arrays, batch_size=batch_size, seed=seed)


def _plan(data, epochs):
    if isinstance(data, TrainingData):
        return plan_lib.build(
            len(data.source),
            duration=f"{epochs}ep",
            global_batch_size=data.global_batch_size,
            log_every="0st",
        )
    return plan_lib.Plan(epochs * data.steps, Fraction(data.steps))


def _prepare(model, data, replicas) -> None:
    """Makes sure that the model is one that our step can run, and is built."""
    if getattr(model, "optimizer", None) is None and not getattr(model, "compiled", False):
        raise UserError("received a model that is not compiled: call model.compile() first.")
    for method in ("train_step", "test_step"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise UserError(
                f"received a model with its own {method}, expected Keras's: the step is "
                "tfaccel's. Override compute_loss and compute_metrics instead, or use "
                "model.fit."
            )
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if optimizer is not None and optimizer.gradient_accumulation_steps:
        raise UserError(
            "received an optimizer with gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, expected none: pass "
            "tfaccel.fit(..., accumulation=...)."
        )
    if optimizer is not None and optimizer.use_ema:
        raise UserError(
            "received an optimizer with use_ema=True, expected False: pass "
            "tfaccel.fit(..., ema=tfaccel.ema.build(model, decay=...))."
        )
    if not model.built and isinstance(data, ForeignData):
        first = data.first()
        with replicas.scope():
            model(first[0] if isinstance(first, tuple) else first, training=False)
