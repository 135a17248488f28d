"""Augmentation of whole batches, random per example, without state."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel import randomness
from tfaccel.errors import UserError
from tfaccel.fields import Count
from tfaccel.lazy import tf


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


def build(
    *, crop_padding: Count = 0, flip: bool = False
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that augments a batch of images.

    Geometry is one gather over the whole batch; no image is handled alone.

    Args:
        crop_padding: Pixels of black border around an image before a window of
            the original size is cut from a random place; 0 for no cropping.
        flip: Mirror every second image, on average, left to right.

    Returns:
        A function (images [n, height, width, channels] of any dtype, keys uint32
        [n]) -> images. An example's key decides all that happens to it.

    Example:
        augment = tfaccel.data.augment.build(crop_padding=4, flip=True)
        keys = tfaccel.randomness.mix(seed, epoch, example_ids)
        images = augment(images, keys)
    """

    def augment(images, keys):
        if not (crop_padding or flip):
            return images
        check_fits(tuple(images.shape[1:]), crop_padding)
        shift = 2 * crop_padding + 1
        top = _draw(keys, "crop top", shift) - crop_padding
        left = _draw(keys, "crop left", shift) - crop_padding
        mirrored = _draw(keys, "flip", 2) if flip else tf.zeros_like(top)
        return _cut(images, top, left, mirrored, crop_padding)

    return augment


def _draw(keys, purpose: str, bound: int):
    return randomness.below(randomness.mix(keys, randomness.purpose(purpose)), bound)


def _cut(images, top, left, mirrored, padding: int):
    """Cuts a window of the image's own size at (top, left), mirrored where 1."""
    count, height, width = tf.shape(images)[0], images.shape[1], images.shape[2]
    if padding:
        border = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
        images = tf.pad(images, border)
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    rows = tf.range(height) + top[:, None] + padding
    columns = tf.range(width)
    columns = tf.where(mirrored[:, None] == 1, width - 1 - columns, columns)
    columns += left[:, None] + padding
    first_row = tf.range(count)[:, None] * padded_height
    pixels = (first_row + rows)[:, :, None] * padded_width + columns[:, None, :]
    flat = tf.reshape(images, [-1, images.shape[3]])
    cut = tf.gather(flat, tf.reshape(pixels, [-1]))
    return tf.reshape(cut, [count, height, width, images.shape[3]])
