"""Colour jitter: brightness, contrast, saturation and hue, each by a random amount."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from tfaccel import randomness
from tfaccel.data.augment import groups
from tfaccel.data.augment import operations as pillow
from tfaccel.data.augment.compose import augmentation, unchanged
from tfaccel.fields import Range, Share
from tfaccel.lazy import tf

HalfTurn = Annotated[float, Range(0, 0.5)]


def build(
    *,
    brightness: Share = 0.0,
    contrast: Share = 0.0,
    saturation: Share = 0.0,
    hue: HalfTurn = 0.0,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that changes each image's colours a little.

    The four come in this order, each by an amount uniform about "no change", as in
    torchvision's ColorJitter; the operations are Pillow's.

    Args:
        brightness: 0.4 multiplies by 0.6 to 1.4.
        contrast: Likewise, about the image's mean grey.
        saturation: Likewise, about each pixel's grey.
        hue: Largest share of the circle of hues to turn by, up to 0.5.

    Returns:
        A function (images uint8 [n, height, width, 1 or 3], keys uint32 [n]) ->
        images.

    Example:
        augment = tfaccel.data.augment.color_jitter.build(brightness=0.4, hue=0.1)
    """
    factors = (
        ("brightness", pillow.brightness, brightness),
        ("contrast", pillow.contrast, contrast),
        ("saturation", pillow.color, saturation),
    )

    def draw(keys, name, low, high):
        word = randomness.purpose(f"color jitter {name}")
        return randomness.between(randomness.mix(keys, word), low, high)

    def augment(images, keys):
        groups.check_images(images, "data.augment.color_jitter")
        for name, operation, amount in factors:
            if amount:
                images = operation(images, draw(keys, name, 1 - amount, 1 + amount))
        if hue and images.shape[-1] == 3:
            images = pillow.hue(images, draw(keys, "hue", -hue, hue))
        return images

    return augmentation(augment) if brightness or contrast or saturation or hue else unchanged
