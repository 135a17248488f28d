"""Pillow's image operations for whole batches: what RandAugment is made of.

All arithmetic is in whole numbers, so that every pixel is the same in eager mode,
in a graph and under XLA. Images are uint8 [n, height, width, 1 or 3]; amounts are
one number an image, float64 [n], unless stated otherwise.
"""

from __future__ import annotations

import math

from tfaccel.data.augment import resample
from tfaccel.lazy import tf

# What shows where an image was moved away: the grey of AutoAugment's and
# RandAugment's own code.
GREY = 128
# An amount's fractions, in bits: 2 * 255 times it fits in 31 bits.
_BITS = 16


def affine(images, matrices):
    """Shears, moves or turns: matrices float64 [n, 6] of the three functions below."""
    return resample.affine(images, matrices, GREY)


def shear(across, down):
    """Each row moves by `across` times its number, each column by `down` times."""
    one, zero = tf.ones_like(across), tf.zeros_like(across)
    return tf.stack([one, across, zero, down, one, zero], axis=1)


def translate(right, down):
    """Moves by pixels, or fractions of them, to the right and down."""
    one, zero = tf.ones_like(right), tf.zeros_like(right)
    return tf.stack([one, zero, -right, zero, one, -down], axis=1)


def rotate(degrees, height: int, width: int):
    """Turns counter-clockwise about the centre."""
    angle = degrees * (math.pi / 180)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    x, y = width / 2, height / 2
    from_left, from_top = x - cosine * x + sine * y, y - sine * x - cosine * y
    return tf.stack([cosine, -sine, from_left, sine, cosine, from_top], axis=1)


def brightness(images, factors):
    """Black at factor 0, the image at 1, brighter above."""
    return _blend(0, images, factors)


def contrast(images, factors):
    """The image's mean grey at factor 0, the image at 1."""
    count = images.shape[1] * images.shape[2]
    total = tf.reduce_sum(_grey(images), axis=(1, 2, 3), keepdims=True)
    return _blend((2 * total + count) // (2 * count), images, factors)


def color(images, factors):
    """Grey at factor 0, the image at 1, more colourful above."""
    return _blend(_grey(images), images, factors)


def sharpness(images, factors):
    """Smoothed at factor 0, the image at 1, sharper above; the outermost pixels stay."""
    if min(images.shape[1:3]) < 3:
        return images
    values = tf.cast(images, tf.int32)
    rows = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    square = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    # Pillow's SMOOTH: weight 5 in the middle, 1 around it.
    smooth = (2 * (square + 4 * values[:, 1:-1, 1:-1]) + 13) // 26
    inside = _blend(smooth, images[:, 1:-1, 1:-1], factors)
    middle = tf.concat([images[:, 1:-1, :1], inside, images[:, 1:-1, -1:]], axis=2)
    return tf.concat([images[:, :1], middle, images[:, -1:]], axis=1)


def posterize(images, bits):
    """Keeps the highest bits of each value, int32 [n] from 1 to 8."""
    dropped = tf.bitwise.left_shift(tf.ones_like(bits), 8 - bits) - 1
    kept = tf.cast(255 - dropped, tf.uint8)
    return tf.bitwise.bitwise_and(images, kept[:, None, None, None])


def solarize(images, thresholds, additions=None):
    """Inverts values from a threshold on, int32 [n], after adding something to them."""
    values = tf.cast(images, tf.int32)
    if additions is not None:
        values = tf.minimum(values + additions[:, None, None, None], 255)
    inverted = tf.where(values < thresholds[:, None, None, None], values, 255 - values)
    return tf.cast(inverted, tf.uint8)


def autocontrast(images):
    """Stretches each channel to 0..255."""
    values = tf.cast(images, tf.int32)
    low = tf.reduce_min(values, axis=(1, 2), keepdims=True)
    spread = tf.reduce_max(values, axis=(1, 2), keepdims=True) - low
    stretched = (values - low) * 255 // tf.maximum(spread, 1)
    return tf.cast(tf.where(spread > 0, stretched, values), tf.uint8)


def equalize(images):
    """Makes each channel's values about equally frequent."""
    channels = tf.shape(images)[0] * images.shape[3]
    pixels = tf.transpose(tf.cast(images, tf.int32), [0, 3, 1, 2])
    pixels = tf.reshape(pixels, [channels, -1]) + 256 * tf.range(channels)[:, None]
    pixels = tf.reshape(pixels, [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(pixels), pixels, 256 * channels)
    tables = tf.reshape(_equal_table(tf.reshape(counts, [channels, 256])), [-1])
    shape = [-1, images.shape[3], *images.shape[1:3]]
    return tf.transpose(tf.reshape(tf.gather(tables, pixels), shape), [0, 2, 3, 1])


def hue(images, turns):
    """Moves every colour around the circle of hues, by a share of a whole turn."""
    values = tf.cast(images, tf.int32)
    red, green, blue = tf.unstack(values, axis=-1)
    top = tf.reduce_max(values, axis=-1)
    spread = top - tf.reduce_min(values, axis=-1)
    # A sixth of the circle is 2**12; the formula without branches is that of
    # https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative
    sixth = 1 << 12
    sector = tf.where(top == red, 0, tf.where(top == green, 2, 4))
    ahead = tf.where(top == red, green, tf.where(top == green, blue, red))
    behind = tf.where(top == red, blue, tf.where(top == green, red, green))
    angle = sector * sixth + (ahead - behind) * sixth // tf.maximum(spread, 1)
    angle += tf.cast(tf.round(turns * (6 * sixth)), tf.int32)[:, None, None]

    def channel(start):
        place = tf.math.floormod(angle + start * sixth, 6 * sixth)
        share = tf.clip_by_value(tf.minimum(place, 4 * sixth - place), 0, sixth)
        return top - (spread * share + sixth // 2) // sixth

    return tf.cast(tf.stack([channel(5), channel(3), channel(1)], axis=-1), tf.uint8)


def _equal_table(counts):
    """Returns Pillow's tables uint8 [k, 256] for histograms int32 [k, 256]."""
    below = tf.cumsum(counts, axis=1, exclusive=True)
    highest = tf.reduce_max(tf.where(counts > 0, tf.range(256), 0), axis=1, keepdims=True)
    step = tf.gather(below, highest, batch_dims=1) // 255
    table = tf.minimum((step // 2 + below) // tf.maximum(step, 1), 255)
    return tf.cast(tf.where(step > 0, table, tf.range(256)), tf.uint8)


def _grey(images):
    """Returns the luma int32 [n, height, width, 1], rounded as Pillow does."""
    values = tf.cast(images, tf.int32)
    if images.shape[3] == 1:
        return values
    red, green, blue = tf.split(values, 3, axis=-1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) // 0x10000


def _blend(degenerate, images, factors):
    """Goes from `degenerate` at factor 0 to the image at 1, and on."""
    one = 1 << _BITS
    weights = tf.cast(tf.round(factors * one), tf.int32)[:, None, None, None]
    values = degenerate * one + weights * (tf.cast(images, tf.int32) - degenerate)
    return tf.cast(tf.clip_by_value(tf.bitwise.right_shift(values, _BITS), 0, 255), tf.uint8)
