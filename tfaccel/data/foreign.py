"""Anybody's dataset, shared out over replicas and micro-steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel import batches
from tfaccel.errors import UserError
from tfaccel.lazy import keras, tf
from tfaccel.log import logger


class ForeignData:
    """The global batches of any `tf.data.Dataset`, in equal parts.

    A batch that replicas x micro-steps cannot share out evenly, such as the last
    of an epoch, is filled up with copies of its own examples, which count for
    nothing in loss and metrics.

    Args:
        dataset: Dataset of x, (x, y) or (x, y, sample_weight), batched; a batch is
            what all replicas take together in one step.
        parts: How many parts a batch is cut in: replicas x micro-steps.
        steps: Batches an epoch; all of the dataset if None.
        class_weight: As in `keras.Model.fit`.

    Raises:
        UserError: If the dataset is empty, not batched, or endless without `steps`.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        parts: int = 1,
        *,
        steps: int | None = None,
        class_weight: dict[int, float] | None = None,
    ):
        self.parts = parts
        self.steps = steps or _count(dataset)
        self.class_weight = class_weight
        self._dataset = dataset
        self.global_batch_size = _batch_size(dataset)
        if class_weight is not None:
            _check_class_weight(dataset.element_spec)

    def first(self) -> Any:
        """Returns the dataset's first element."""
        return next(iter(self._dataset.take(1)))

    def fingerprint(self) -> float:
        """Returns a number that tells one first batch from another."""
        leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(self.first())]
        numeric = [leaf.astype(np.float64) for leaf in leaves if leaf.dtype.kind in "biuf"]
        return float(
            sum((leaf.ravel() * np.arange(1, leaf.size + 1)).mean() for leaf in numeric)
        )

    def dataset(
        self, first_step: int = 0, shard: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """Returns the parts of this input pipeline's replicas, without end.

        Args:
            first_step: The step to start at, counted from an epoch's start.
            shard: The input pipeline among those of a strategy.

        Returns:
            Dataset of dictionaries, the fields of `tfaccel.batches.Batch`.
        """
        replicas = 1 if shard is None else shard.num_replicas_in_sync
        pipelines = 1 if shard is None else shard.num_input_pipelines
        local = replicas // pipelines
        first = 0 if shard is None else shard.input_pipeline_id * local
        # Endless, as a finite dataset costs a collective a step on workers.
        data = self._dataset.repeat()
        skipped = first_step % self.steps
        data = data.skip(skipped) if skipped else data

        def share_out(*element):
            whole = _filled(_named(element, self.class_weight), self.parts)
            parts = batches.split(whole, replicas)
            return tf.nest.map_structure(lambda t: t[first : first + local], parts)

        data = data.map(share_out, num_parallel_calls=tf.data.AUTOTUNE)
        data = data.unbatch() if local > 1 else data.map(_first_of)
        return data.prefetch(tf.data.AUTOTUNE)


def from_arrays(x, y=None, sample_weight=None, *, batch_size: int, seed: int | None = None):
    """Returns the dataset of batches of arrays, shuffled anew each epoch if seeded.

    Args:
        x: Array, or nested structure of them, of n examples each.
        y: Targets likewise, or None.
        sample_weight: Weights likewise, or None.
        batch_size: Examples a batch; the last of an epoch may be smaller.
        seed: Of the order; None keeps that of the arrays.

    Raises:
        UserError: If the arrays have no or different numbers of examples.
    """
    given = [value for value in (x, y, sample_weight) if value is not None]
    sizes = {len(array) for array in tf.nest.flatten(given)}
    if len(sizes) != 1 or 0 in sizes:
        raise UserError(
            f"received arrays of {', '.join(map(str, sorted(sizes)))} examples, expected "
            "the same number, 1 or more, in all."
        )
    count = sizes.pop()
    with tf.device("CPU:0"):
        tensors = tf.nest.map_structure(tf.convert_to_tensor, tuple(given))
    rows = tf.data.Dataset.range(count)
    if seed is not None:
        rows = rows.shuffle(count, seed=seed, reshuffle_each_iteration=True)
    rows = rows.batch(min(batch_size, count))
    if y is None and sample_weight is not None:
        raise UserError("received sample_weight without y, expected both or neither.")
    return rows.map(
        lambda index: tf.nest.map_structure(lambda t: tf.gather(t, index), tensors),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _count(dataset) -> int:
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise UserError(
            "received a dataset without end, expected to know how long an epoch is: pass "
            "steps_per_epoch (or validation_steps, or steps)."
        )
    if count == tf.data.UNKNOWN_CARDINALITY:
        logger.info("data: counting the batches, which the dataset does not know")
        count = int(dataset.reduce(np.int64(0), lambda total, *_: total + 1))
    if count == 0:
        raise UserError("received an empty dataset, expected at least one batch.")
    return count


def _batch_size(dataset) -> int | None:
    """The static batch size, or None; refuses what is not batched at all."""
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if any(shape.rank == 0 for shape in shapes):
        raise UserError(
            f"received a dataset of {dataset.element_spec}, expected batches: call "
            "dataset.batch(size) first."
        )
    first = shapes[0]
    return first[0] if first.rank else None


def _named(element, class_weight) -> dict[str, Any]:
    """A dataset's element as the fields of a Batch."""
    element = element[0] if len(element) == 1 else element
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(element)
    if class_weight is not None:
        sample_weight = _class_weights(y, class_weight)
    named = {"x": x, "y": y, "sample_weight": sample_weight}
    return {name: value for name, value in named.items() if value is not None}


def _check_class_weight(spec) -> None:
    spec = spec if isinstance(spec, tuple) else (spec,)
    if len(spec) == 3:
        raise UserError(
            "received class_weight and sample weights in the dataset, expected one of them: "
            "multiply them, and pass the product as sample weights."
        )
    if len(spec) == 1 or tf.nest.is_nested(spec[1]):
        raise UserError(
            "received class_weight for targets that are not one tensor, expected sample "
            "weights in the dataset instead."
        )


def _class_weights(y, class_weight):
    if y.shape.rank and y.shape.rank > 1:
        y = y[:, 0] if y.shape[-1] == 1 else tf.argmax(y, axis=-1)
    table = np.ones(max(class_weight) + 1, np.float32)
    for label, weight in class_weight.items():
        table[label] = weight
    labels = tf.cast(y, tf.int64)
    known = labels < len(table)
    return tf.where(known, tf.gather(table, tf.where(known, labels, 0)), 1.0)


def _filled(element: dict[str, Any], parts: int) -> dict[str, Any]:
    """Fills a batch up to a multiple of `parts`, if need be."""
    leaves = tf.nest.flatten(element)
    static = leaves[0].shape[0]
    if parts == 1 or (static is not None and static % parts == 0):
        return element
    count = tf.shape(leaves[0])[0]
    rows = tf.range(-(-count // parts) * parts)
    filled = tf.nest.map_structure(lambda t: tf.gather(t, rows % count), element)
    filled["real"] = tf.cast(rows < count, tf.float32)
    filled["scale"] = tf.cast(tf.size(rows) / count, tf.float32)
    return filled


def _first_of(element):
    return tf.nest.map_structure(lambda tensor: tensor[0], element)
