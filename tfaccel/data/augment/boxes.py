"""Random parts of images, by size and shape: where crops and erasures lie."""

from __future__ import annotations

import math

from tfaccel import randomness
from tfaccel.lazy import tf

_TRIES = 10


def random_resized_boxes(
    keys,
    heights,
    widths,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the part of each image that a random-resized-crop takes.

    The area is uniform, the logarithm of the shape too; a draw that does not fit
    in the image is made again, up to ten times, and then the largest central part
    of an allowed shape is taken (Szegedy et al., "Going Deeper with Convolutions",
    2014, as torchvision's RandomResizedCrop does it).

    Args:
        keys: uint32 [n]; an example's key decides its box.
        heights: Heights of the images in pixels, int32 [n] or one number.
        widths: Widths of the images in pixels, int32 [n] or one number.
        scale: Smallest and largest share of the image's area.
        ratio: Smallest and largest width divided by height.

    Returns:
        (top, left, height, width), each int32 [n], in pixels; never outside the
        image and never empty.

    Example:
        top, left, height, width = random_resized_boxes(keys, 480, 640)
        part = tf.image.crop_to_bounding_box(image, top[0], left[0], height[0], width[0])
    """
    heights, widths = (tf.broadcast_to(size, tf.shape(keys)) for size in (heights, widths))
    fits, height, width = _tries(keys, heights, widths, scale, ratio)
    any_fits, first = tf.reduce_any(fits, axis=1), tf.argmax(tf.cast(fits, tf.int32), axis=1)
    central_height, central_width = _central(heights, widths, ratio)
    height = tf.where(any_fits, tf.gather(height, first, batch_dims=1), central_height)
    width = tf.where(any_fits, tf.gather(width, first, batch_dims=1), central_width)
    spare_rows, spare_columns = heights - height, widths - width
    top = randomness.draw(keys, "box top", spare_rows + 1)
    left = randomness.draw(keys, "box left", spare_columns + 1)
    top = tf.where(any_fits, top, spare_rows // 2)
    left = tf.where(any_fits, left, spare_columns // 2)
    return top, left, height, width


def _tries(keys, heights, widths, scale, ratio):
    """Returns (whether it fits bool, height int32, width int32), each [n, tries]."""
    words = [randomness.purpose(f"box area {i}") for i in range(_TRIES)]
    share = randomness.between(randomness.mix(keys[:, None], words), *scale)
    words = [randomness.purpose(f"box ratio {i}") for i in range(_TRIES)]
    low, high = (math.log(bound) for bound in ratio)
    root = tf.exp(randomness.between(randomness.mix(keys[:, None], words), low, high) / 2)
    # In float64 a last bit, in which machines may differ, decides no rounding.
    sides = [tf.cast(size, tf.float64)[:, None] for size in (heights, widths)]
    area = share * sides[0] * sides[1]
    height = tf.cast(tf.round(tf.sqrt(area) / root), tf.int32)
    width = tf.cast(tf.round(tf.sqrt(area) * root), tf.int32)
    fits = (height > 0) & (width > 0)
    fits &= (height <= heights[:, None]) & (width <= widths[:, None])
    return fits, height, width


def _central(heights, widths, ratio):
    """Returns the (height, width) of the largest part of an allowed shape."""
    low, high = ratio
    rows, columns = tf.cast(heights, tf.float64), tf.cast(widths, tf.float64)
    height = tf.minimum(rows, tf.maximum(tf.round(columns / low), 1.0))
    width = tf.minimum(columns, tf.maximum(tf.round(rows * high), 1.0))
    return tf.cast(height, tf.int32), tf.cast(width, tf.int32)


def mask(images, top, left, height, width) -> tf.Tensor:
    """Returns which pixels lie in a box of each image.

    Args:
        images: [n, rows, columns, channels]; only the shape counts.
        top: First row of each box, int32 [n]; may lie outside, as may the others.
        left: First column, likewise.
        height: Rows, likewise, or one number.
        width: Columns, likewise, or one number.

    Returns:
        bool [n, rows, columns, 1].
    """
    down = tf.range(images.shape[1])[None] - top[:, None]
    across = tf.range(images.shape[2])[None] - left[:, None]
    height, width = (tf.reshape(length, [-1, 1]) for length in (height, width))
    in_rows, in_columns = (down >= 0) & (down < height), (across >= 0) & (across < width)
    return (in_rows[:, :, None] & in_columns[:, None, :])[..., None]
