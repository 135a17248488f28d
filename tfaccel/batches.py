"""What a step takes: one replica's part of a global batch, and what its rows weigh.

A global batch that cannot be split evenly is filled up with rows that count for
nothing: `real` marks them, and `scale` makes up for the mean over too many.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tfaccel.errors import UserError
from tfaccel.lazy import keras, tf


@dataclasses.dataclass(frozen=True)
class Batch:
    """One replica's examples; tensors or nested structures of them.

    Args:
        x: Inputs.
        y: Targets, or None.
        sample_weight: The user's own weights, or None.
        real: float32 [b], 0 for rows that only fill the batch up; None if all count.
        scale: float32 scalar: rows of the global batch divided by those that
            count; None to take it from this replica's own rows.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    real: tf.Tensor | None = None
    scale: tf.Tensor | None = None

    @property
    def rows(self) -> tf.Tensor:
        """How many rows there are, as int32."""
        return tf.shape(tf.nest.flatten(self.x)[0])[0]

    def full_scale(self) -> tf.Tensor:
        """Returns `scale`, or this replica's own; 0 if no row counts."""
        if self.scale is not None:
            return self.scale
        if self.real is None:
            return tf.constant(1.0)
        return tf.math.divide_no_nan(tf.cast(self.rows, tf.float32), tf.reduce_sum(self.real))

    def examples(self) -> tf.Tensor:
        """Returns what this part counts in a mean over examples, as float32."""
        if self.scale is None and self.real is None:
            return tf.cast(self.rows, tf.float32)
        return tf.math.divide_no_nan(tf.cast(self.rows, tf.float32), self.full_scale())


def unpack(element) -> Batch:
    """Returns the batch of a dataset's element: a tuple as for Keras, or our own dict."""
    if isinstance(element, dict):
        return Batch(**element)
    return Batch(*keras.utils.unpack_x_y_sample_weight(element))


def split(element, parts: int):
    """Returns an element with each tensor cut in equal parts along a new first axis."""

    def cut(tensor):
        if tensor.shape.rank == 0:  # The scale, which is the same for all parts.
            return tf.repeat(tensor, parts)
        known = [
            d if d is not None else tf.shape(tensor)[i] for i, d in enumerate(tensor.shape)
        ]
        return tf.reshape(tensor, [parts, -1, *known[1:]])

    return tf.nest.map_structure(cut, element)


def loss_weights(model: keras.Model, batch: Batch, share: float) -> Any:
    """Returns the sample weights under which parts of a batch sum to the whole.

    The step divides each part's loss by `share`, which is right for means. Sums
    are weighted up by as much, and means by the rows that count.

    Args:
        model: The compiled model, whose losses say how they are reduced.
        batch: One part.
        share: What the step divides the loss by.
    """
    reductions = _reductions(model)
    kinds = {_is_mean(reduction) for reduction in tf.nest.flatten(reductions)}
    if len(kinds) == 1:
        return _weighted(batch, batch.sample_weight, kinds.pop(), share)
    own = batch.sample_weight
    if not tf.nest.is_nested(own):
        own = tf.nest.map_structure(lambda _: own, reductions)
    return tf.nest.map_structure(
        lambda reduction, weight: _weighted(batch, weight, _is_mean(reduction), share),
        reductions,
        own,
    )


def check_losses(model: keras.Model, parts: int) -> None:
    """Refuses a loss whose parts cannot sum to the whole.

    Raises:
        UserError: For a mean over sample weights, if batches are split at all.
    """
    if parts > 1 and "mean_with_sample_weight" in tf.nest.flatten(_reductions(model)):
        raise UserError(
            "received a loss with reduction='mean_with_sample_weight' for a batch in "
            f"{parts} parts, expected another reduction: its means over the weights of each "
            "part do not add up to that of the batch. Use 'sum_over_batch_size'."
        )


def only_real(batch: Batch, structure) -> Any:
    """Returns a structure of tensors without the rows that do not count."""
    if batch.real is None:
        return structure
    real = batch.real > 0

    def kept(tensor):
        return None if tensor is None else tf.boolean_mask(tensor, real)

    return tf.nest.map_structure(kept, structure)


def _weighted(batch: Batch, weight, is_mean: bool, share: float):
    factor = batch.full_scale() if is_mean else tf.constant(float(share))
    if batch.real is None:
        if batch.scale is None and (is_mean or share == 1):
            return weight
        rows = tf.fill([batch.rows], factor)
    else:
        rows = batch.real * factor
    if weight is None:
        return rows
    return tf.nest.map_structure(lambda w: _times(w, rows), weight)


def _times(weight, rows):
    extra = [1] * (weight.shape.rank - 1)
    return weight * tf.cast(tf.reshape(rows, [-1, *extra]), weight.dtype)


def _reductions(model):
    """The reduction of each loss, in the structure that was given to compile."""
    return tf.nest.map_structure(_reduction, model.loss)


def _reduction(loss) -> str:
    if isinstance(loss, keras.losses.Loss):
        return loss.reduction or "none"
    return "sum_over_batch_size"  # What Keras makes of a name or a function.


def _is_mean(reduction: str) -> bool:
    return reduction in ("sum_over_batch_size", "mean", "mean_with_sample_weight")
