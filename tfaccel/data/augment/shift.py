"""Random shifts (pad, then crop) and flips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tfaccel import fields, randomness
from tfaccel.data.augment.compose import augmentation, unchanged
from tfaccel.errors import UserError
from tfaccel.fields import Count
from tfaccel.lazy import tf

Border = Literal["black", "reflect"]


def check_fits(image_shape: tuple[int, int, int], crop_padding: int) -> None:
    """Refuses padding from which a crop could show no pixel of the image."""
    smallest = min(image_shape[:2])
    if crop_padding >= smallest:
        height, width = image_shape[:2]
        raise UserError(
            f"received data.augment.crop_padding={crop_padding} for images of "
            f"{height}x{width}, expected less than {smallest}: a crop may lie wholly "
            f"in the padding. Try {max(1, smallest // 8)}."
        )


def check(
    *, crop_padding: Count, crop_border: Border, flip: bool, alternating_flip: bool
) -> None:
    """Refuses two kinds of flip at once."""
    del crop_padding
    fields.check(Border, crop_border, "data.augment.crop_border")
    if flip and alternating_flip:
        raise UserError(
            "received data.augment.flip=True and data.augment.alternating_flip=True, "
            "expected one of them."
        )


def build(
    *,
    crop_padding: Count = 0,
    crop_border: Border = "black",
    flip: bool = False,
    alternating_flip: bool = False,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that shifts and flips a batch of images.

    Geometry is one gather over the whole batch; no image is handled alone.

    Args:
        crop_padding: Pixels of border around an image before a window of the
            original size is cut from a random place; 0 for no cropping.
        crop_border: "black", or "reflect" to mirror the image at its edges.
        flip: Mirror every second image, on average, left to right.
        alternating_flip: Mirror each image in every other epoch, beginning with
            its first or its second (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a
            Single GPU", 2024): no two epochs in a row show the same side.

    Returns:
        A function (images [n, height, width, channels] of any dtype, keys uint32
        [n]) -> images. An example's key decides all that happens to it; for
        `alternating_flip` it comes from `tfaccel.randomness.example_keys`.

    Example:
        augment = tfaccel.data.augment.build(crop_padding=4, flip=True)
        keys = tfaccel.randomness.example_keys(seed, epochs, example_numbers)
        images = augment(images, keys)
    """
    check(
        crop_padding=crop_padding,
        crop_border=crop_border,
        flip=flip,
        alternating_flip=alternating_flip,
    )

    def augment(images, keys):
        height, width = images.shape[1:3]
        rows, columns = tf.range(height)[None], tf.range(width)[None]
        if flip or alternating_flip:
            columns = tf.where(_mirrored(keys, flip)[:, None], width - 1 - columns, columns)
        if not crop_padding:
            return _window(images, rows, columns)
        check_fits(tuple(images.shape[1:]), crop_padding)
        top, left = (
            randomness.draw(keys, f"crop {side}", 2 * crop_padding + 1)[:, None] - crop_padding
            for side in ("top", "left")
        )
        rows, columns = rows + top, columns + left
        if crop_border == "reflect":
            return _window(images, _reflected(rows, height), _reflected(columns, width))
        window = _window(
            images,
            tf.clip_by_value(rows, 0, height - 1),
            tf.clip_by_value(columns, 0, width - 1),
        )
        return _blackened(window, rows, columns)

    return augmentation(augment) if crop_padding or flip or alternating_flip else unchanged


def _mirrored(keys, at_random: bool):
    if at_random:
        return randomness.draw(keys, "flip", 2) == 1
    return keys & tf.constant(1, tf.uint32) == 1


def _window(images, rows, columns):
    """Gathers the pixels at rows int32 [n or 1, height] and columns int32 [n, width]."""
    height, width, channels = images.shape[1:]
    pixels = tf.reshape(images, [-1, height * width, channels])
    return tf.gather(pixels, rows[:, :, None] * width + columns[:, None], batch_dims=1)


def _reflected(places, size: int):
    """Turns places outside of 0 to `size` - 1 back at the edge, which is not repeated."""
    return size - 1 - tf.abs(size - 1 - tf.abs(places))


def _blackened(images, rows, columns):
    """Makes the pixels black whose row or column lies outside.

    Padding before the gather instead takes XLA longer, and a mask pixel by pixel
    takes TensorFlow's own operations longer than one over whole rows.
    """
    height, width, channels = images.shape[1:]
    columns = tf.repeat(columns, channels, axis=1)
    inside_rows = (rows >= 0) & (rows < height)
    inside_columns = (columns >= 0) & (columns < width)
    wide = tf.reshape(images, [-1, height, width * channels])
    wide = tf.where(
        inside_rows[:, :, None] & inside_columns[:, None], wide, tf.zeros_like(wide)
    )
    return tf.reshape(wide, [-1, height, width, channels])
