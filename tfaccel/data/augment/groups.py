"""Runs each of several operations on the images that drew it, and on no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfaccel.errors import UserError
from tfaccel.lazy import tf

# So many images go through an operation at once. Their number must be fixed for
# XLA, and few are quick: they stay in the processor's cache.
_CHUNK = 32


def apply(operations: Sequence[Callable], choices, images, keys):
    """Returns the images, each after the one operation it drew.

    Computing every operation for every image would take as many times as long as
    there are operations. Images are ordered by their operation instead, and go
    through it in chunks of a fixed size.

    Args:
        operations: Functions (images, keys) -> images, each image for itself.
        choices: Number of each image's operation, int32 [n].
        images: uint8 [n, height, width, channels].
        keys: uint32 [n].

    Returns:
        uint8 of the same shape.
    """
    count = tf.shape(images)[0]
    size = (
        tf.minimum(count, _CHUNK) if images.shape[0] is None else min(images.shape[0], _CHUNK)
    )
    order = tf.argsort(choices, stable=True)
    numbers = tf.range(len(operations))[:, None]
    ends = tf.reduce_sum(tf.cast(choices <= numbers, tf.int32), axis=1)
    for number, operation in enumerate(operations):
        start = ends[number - 1] if number else tf.constant(0)

        def run_chunk(position, images, operation=operation, end=ends[number]):
            # The last window may reach back over images that are done already.
            places = tf.minimum(position, count - size) + tf.range(size)
            chosen = tf.gather(order, places)
            before = tf.gather(images, chosen)
            after = operation(before, tf.gather(keys, chosen))
            due = (places >= position) & (places < end)
            after = tf.where(due[:, None, None, None], after, before)
            return position + size, tf.tensor_scatter_nd_update(images, chosen[:, None], after)

        _, images = tf.while_loop(
            lambda position, _, end=ends[number]: position < end,
            run_chunk,
            (start, images),
            parallel_iterations=1,
        )
    return images


def pick(choices, tensors):
    """Returns row i of the tensor that `choices[i]`, int32 [n], numbers."""
    return tf.gather(tf.stack(tensors, axis=1), choices, batch_dims=1)


def check_images(images, name: str) -> None:
    """Refuses images that Pillow's operations are not made for.

    Raises:
        UserError: Unless they are uint8 with 1 or 3 channels.
    """
    if images.dtype != tf.uint8 or images.shape[-1] not in (1, 3):
        raise UserError(
            f"{name}: received images of dtype {images.dtype.name} with "
            f"{images.shape[-1]} channels, expected uint8 with 1 or 3: augment before "
            "you normalise."
        )
