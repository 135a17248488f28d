"""Cutout: a square of the image is painted over."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel import randomness
from tfaccel.data.augment import boxes
from tfaccel.data.augment.compose import augmentation, unchanged
from tfaccel.data.augment.erasing import paint
from tfaccel.fields import Count
from tfaccel.lazy import tf


def build(*, size: Count = 0) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that paints a grey square over each image.

    DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks
    with Cutout" (2017). The square's centre may be any pixel, so part of the square
    may lie outside.

    Args:
        size: Height and width of the square in pixels; 0 for none, 16 is usual for
            CIFAR-10.

    Returns:
        A function (images uint8 [n, height, width, channels], keys uint32 [n]) ->
        images.

    Example:
        augment = tfaccel.data.augment.cutout.build(size=16)
    """

    def augment(images, keys):
        top, left = (
            randomness.draw(keys, f"cutout {side}", length) - size // 2
            for side, length in zip(("top", "left"), images.shape[1:3], strict=True)
        )
        inside = boxes.mask(images, top, left, size, size)
        return tf.where(inside, paint(images, keys, "grey"), images)

    return augmentation(augment) if size else unchanged
