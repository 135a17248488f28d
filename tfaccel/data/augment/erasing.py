"""Random erasing: a random rectangle of the image is painted over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from tfaccel import fields, randomness
from tfaccel.data.augment import boxes
from tfaccel.data.augment.compose import augmentation, unchanged
from tfaccel.errors import UserError
from tfaccel.fields import Share
from tfaccel.lazy import tf

Fill = Literal["grey", "black", "noise"]


def check(*, probability: Share, smallest_area: Share, largest_area: Share, fill: Fill) -> None:
    """Refuses areas in the wrong order."""
    del probability
    fields.check(Fill, fill, "data.augment.erasing.fill")
    if not 0 < smallest_area <= largest_area:
        raise UserError(
            f"received data.augment.erasing.smallest_area={smallest_area} and "
            f"largest_area={largest_area}, expected 0 < smallest <= largest: 0.02 and "
            "0.33 are the usual values."
        )


def build(
    *,
    probability: Share = 0.0,
    smallest_area: Share = 0.02,
    largest_area: Share = 0.33,
    fill: Fill = "grey",
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that paints over a rectangle in some of the images.

    Zhong et al., "Random Erasing Data Augmentation" (2017).

    Args:
        probability: Share of the images it happens to; 0 for none.
        smallest_area: Smallest share of the image that is erased.
        largest_area: Largest share.
        fill: "grey" (128), "black" (0) or "noise", a random value for each pixel
            and channel.

    Returns:
        A function (images uint8 [n, height, width, channels], keys uint32 [n]) ->
        images.

    Example:
        augment = tfaccel.data.augment.erasing.build(probability=0.25)
    """
    check(
        probability=probability,
        smallest_area=smallest_area,
        largest_area=largest_area,
        fill=fill,
    )

    def augment(images, keys):
        own = randomness.mix(keys, randomness.purpose("erasing"))
        height, width = images.shape[1:3]
        top, left, rows, columns = boxes.random_resized_boxes(
            own, height, width, scale=(smallest_area, largest_area), ratio=(0.3, 1 / 0.3)
        )
        bits = randomness.mix(own, randomness.purpose("erased"))
        erased = randomness.between(bits, 0, 1) < probability
        inside = boxes.mask(images, top, left, rows, columns) & erased[:, None, None, None]
        return tf.where(inside, paint(images, own, fill), images)

    return augmentation(augment) if probability else unchanged


def paint(images, keys, fill: Fill):
    """Returns what goes over erased pixels; broadcasts to the images' shape."""
    if fill != "noise":
        return tf.constant(128 if fill == "grey" else 0, images.dtype)
    values = tf.range(math.prod(images.shape[1:]))
    bits = randomness.mix(keys[:, None], values, randomness.purpose("noise"))
    noise = tf.cast(tf.bitwise.right_shift(bits, tf.constant(24, tf.uint32)), images.dtype)
    return tf.reshape(noise, [-1, *images.shape[1:]])
