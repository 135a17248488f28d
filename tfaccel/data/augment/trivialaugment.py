"""TrivialAugment: one operation of any strength, drawn anew for every example."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel import randomness
from tfaccel.data.augment import groups
from tfaccel.data.augment import operations as pillow
from tfaccel.data.augment.compose import augmentation, unchanged
from tfaccel.lazy import tf

_LEVELS = 31


def build(*, enabled: bool = False) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that applies one randomly drawn operation to each image.

    Mueller and Hutter, "TrivialAugment" (2021), in its "wide" space of 14
    operations and 31 strengths: nothing to tune.

    Args:
        enabled: Whether to do it at all.

    Returns:
        A function (images uint8 [n, height, width, 1 or 3], keys uint32 [n]) ->
        images.

    Example:
        augment = tfaccel.data.augment.trivialaugment.build(enabled=True)
    """

    def augment(images, keys):
        groups.check_images(images, "data.augment.trivialaugment")
        own = randomness.mix(keys, randomness.purpose("trivialaugment"))
        # The five kinds of geometry are one operation, drawn five times as often.
        choices = randomness.draw(own, "operation", len(_OPERATIONS) + 4)
        return groups.apply(_OPERATIONS, tf.maximum(choices - 4, 0), images, own)

    return augmentation(augment) if enabled else unchanged


def _level(keys):
    """Returns the strength, from 0 to 1 in 31 levels."""
    return tf.cast(randomness.draw(keys, "level", _LEVELS), tf.float64) / (_LEVELS - 1)


def _signed(keys, most: float):
    sign = 1.0 - 2.0 * tf.cast(randomness.draw(keys, "sign", 2), tf.float64)
    return sign * _level(keys) * most


def _geometry(images, keys):
    height, width = images.shape[1:3]
    amount = _signed(keys, 1.0)
    none = tf.zeros_like(amount)
    kinds = (
        pillow.shear(amount * 0.99, none),
        pillow.shear(none, amount * 0.99),
        pillow.translate(amount * 32, none),
        pillow.translate(none, amount * 32),
        pillow.rotate(amount * 135, height, width),
    )
    kind = randomness.draw(keys, "geometry", len(kinds))
    return pillow.affine(images, groups.pick(kind, kinds))


def _enhance(operation: Callable) -> Callable:
    return lambda images, keys: operation(images, 1 + _signed(keys, 0.99))


def _posterize(images, keys):
    return pillow.posterize(images, 8 - tf.cast(tf.round(_level(keys) * 6), tf.int32))


def _solarize(images, keys):
    return pillow.solarize(images, 255 - tf.cast(tf.round(_level(keys) * 255), tf.int32))


_OPERATIONS = (
    _geometry,
    lambda images, keys: images,
    _enhance(pillow.brightness),
    _enhance(pillow.color),
    _enhance(pillow.contrast),
    _enhance(pillow.sharpness),
    _posterize,
    _solarize,
    lambda images, keys: pillow.autocontrast(images),
    lambda images, keys: pillow.equalize(images),
)
