"""Bilinear resampling of whole batches, in whole numbers.

Floating point rounds differently inside and outside XLA (a multiplication and an
addition may become one), which now and then would make another pixel value.
Fixed point does not.
"""

from __future__ import annotations

from tfaccel.lazy import tf

# Fractions of a pixel, in bits: two weights and a pixel value fit in 31 bits.
_BITS = 11
_ONE = 1 << _BITS


def resize_part(images, top, left, height, width):
    """Enlarges a part of each image to the image's own size.

    Args:
        images: uint8 [n, rows, columns, channels].
        top: First row of each part, int32 [n]; the others likewise.
        left: First column.
        height: Rows.
        width: Columns.

    Returns:
        uint8 of the same shape. Pixels are sampled at their centres, as in
        Pillow's and TensorFlow's bilinear resizing.
    """
    rows, columns = images.shape[1:3]
    first, second, weight = _samples(rows, top, height)
    above = tf.gather(images, first, batch_dims=1)
    below = tf.gather(images, second, batch_dims=1)
    mixed = _blend(above, below, weight[:, :, None, None])
    first, second, weight = _samples(columns, left, width)
    before, after = (
        tf.gather(mixed, tf.repeat(index[:, None], rows, axis=1), batch_dims=2)
        for index in (first, second)
    )
    return _to_uint8(_blend(before, after, weight[:, None, :, None]))


def affine(images, matrices, fill: int):
    """Samples each image at the places that an affine map gives.

    The pixel whose centre is (x, y) shows the image at (a x + b y + c, d x + e y +
    f), as in Pillow's `Image.transform`; a place outside the image shows `fill`.

    Args:
        images: uint8 [n, height, width, channels].
        matrices: (a, b, c, d, e, f) of each image, float64 [n, 6], in pixels.
        fill: What shows from outside, 0 to 255.

    Returns:
        uint8 of the same shape.
    """
    height, width = images.shape[1:3]
    # Counted in halves of a pixel, where centres are whole numbers.
    x = 2 * tf.range(width, dtype=tf.int64)[None, None, :] + 1
    y = 2 * tf.range(height, dtype=tf.int64)[None, :, None] + 1
    a, b, c, d, e, f = (
        tf.cast(tf.round(number * (_ONE * _ONE / 2)), tf.int64)[:, None, None]
        for number in tf.unstack(matrices, axis=1)
    )
    across = tf.bitwise.right_shift(a * x + b * y + 2 * c, tf.constant(_BITS, tf.int64))
    down = tf.bitwise.right_shift(d * x + e * y + 2 * f, tf.constant(_BITS, tf.int64))
    outside = (across < 0) | (across >= width * _ONE) | (down < 0) | (down >= height * _ONE)
    left, right, across = _neighbours(tf.cast(across, tf.int32) - _ONE // 2, width)
    top, bottom, down = _neighbours(tf.cast(down, tf.int32) - _ONE // 2, height)
    flat = tf.reshape(images, [-1, height * width, images.shape[3]])

    def row(index):
        before, after = (
            tf.gather(flat, index * width + column, batch_dims=1) for column in (left, right)
        )
        return _blend(before, after, across[..., None])

    sampled = _to_uint8(_blend(row(top), row(bottom), down[..., None]))
    return tf.where(outside[..., None], tf.constant(fill, tf.uint8), sampled)


def _samples(size: int, first, length):
    """Where `size` samples of a run of pixels lie: two neighbours and a weight, [n, size]."""
    steps = 2 * tf.range(size, dtype=tf.int64) + 1
    lengths = tf.cast(length, tf.int64)[:, None]
    places = tf.cast(steps * lengths * (_ONE // 2) // size, tf.int32) - _ONE // 2
    low, high, weight = _neighbours(places, length[:, None])
    return low + first[:, None], high + first[:, None], weight


def _neighbours(places, size):
    """Splits places in fixed point, counted from the first centre: pixels and weight."""
    whole = tf.bitwise.right_shift(places, _BITS)
    low, high = (tf.clip_by_value(whole + step, 0, size - 1) for step in (0, 1))
    return low, high, places & (_ONE - 1)


def _blend(first, second, weight):
    first, second = tf.cast(first, tf.int32), tf.cast(second, tf.int32)
    return first * _ONE + (second - first) * weight


def _to_uint8(values):
    half = 1 << (2 * _BITS - 1)
    return tf.cast(tf.bitwise.right_shift(values + half, 2 * _BITS), tf.uint8)
