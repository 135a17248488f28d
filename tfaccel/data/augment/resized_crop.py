"""Random-resized-crop: a random part of the image, enlarged to the image's size."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel.data.augment import boxes, resample
from tfaccel.data.augment.compose import augmentation, unchanged
from tfaccel.errors import UserError
from tfaccel.fields import Share
from tfaccel.lazy import tf


def check(*, smallest_area: Share, narrowest: Share) -> None:
    """Refuses parts without area."""
    for name, value in (("smallest_area", smallest_area), ("narrowest", narrowest)):
        if value == 0:
            raise UserError(
                f"received data.augment.resized_crop.{name}=0.0, expected more than 0: "
                "0.08 and 0.75 are the usual values."
            )


def build(
    *, smallest_area: Share = 1.0, narrowest: Share = 0.75
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that shows a random part of each image, enlarged.

    Szegedy et al., "Going Deeper with Convolutions" (2014). For images already
    decoded to one size; where they come from larger files, the part is better cut
    while decoding.

    Args:
        smallest_area: Smallest share of the image that is shown; 1 switches it
            off, 0.08 is usual for ImageNet.
        narrowest: Smallest width / height, and height / width, of the part.

    Returns:
        A function (images uint8 [n, height, width, channels], keys uint32 [n]) ->
        images.

    Example:
        augment = tfaccel.data.augment.resized_crop.build(smallest_area=0.08)
    """
    check(smallest_area=smallest_area, narrowest=narrowest)

    def augment(images, keys):
        height, width = images.shape[1:3]
        scale, ratio = (smallest_area, 1.0), (narrowest, 1 / narrowest)
        parts = boxes.random_resized_boxes(keys, height, width, scale=scale, ratio=ratio)
        return resample.resize_part(images, *parts)

    return augmentation(augment) if smallest_area < 1 else unchanged
