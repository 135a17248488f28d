"""RandAugment: some operations in turn, drawn anew for every example."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel import randomness
from tfaccel.data.augment import groups
from tfaccel.data.augment import operations as pillow
from tfaccel.data.augment.compose import augmentation, unchanged
from tfaccel.fields import Count, Share
from tfaccel.lazy import tf


def build(
    *, number: Count = 0, magnitude: Share = 0.5
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that applies randomly drawn operations to each image.

    Cubuk et al., "RandAugment" (2019), with the eleven operations and the
    magnitudes of `keras.layers.RandAugment`, each operation as Pillow computes it.
    An image draws its own operations and their amounts; Keras draws the operations
    once for the whole batch.

    Args:
        number: How many operations an image goes through; 0 for none, 2 is usual.
        magnitude: How strong they may be. At 0.5 an image is turned by up to 180
            degrees, moved by half its size, sheared by 0.5, made lighter or darker
            by half.

    Returns:
        A function (images uint8 [n, height, width, 1 or 3], keys uint32 [n]) ->
        images.

    Example:
        augment = tfaccel.data.augment.randaugment.build(number=2, magnitude=0.2)
    """

    def augment(images, keys):
        groups.check_images(images, "data.augment.randaugment")
        operations = _operations(magnitude)

        def one_turn(turn, images):
            own = randomness.mix(keys, turn, randomness.purpose("randaugment"))
            # Shear, translate and rotate are one operation, drawn three times as often.
            choices = randomness.draw(own, "operation", len(operations) + 2)
            return turn + 1, groups.apply(operations, tf.maximum(choices - 2, 0), images, own)

        start = (tf.constant(0), images)
        return tf.while_loop(lambda turn, _: turn < number, one_turn, start)[1]

    return augmentation(augment) if number else unchanged


def _operations(magnitude: float) -> list[Callable]:
    """Keras's operations as functions (images, keys) -> images."""

    def signed(keys, name, scale=1.0):
        bits = randomness.mix(keys, randomness.purpose(name))
        return randomness.between(bits, -magnitude * scale, magnitude * scale)

    def upto(keys, name, most):
        return randomness.draw(keys, name, int(most) + 1)

    def geometry(images, keys):
        height, width = images.shape[1:3]
        across, down = signed(keys, "across"), signed(keys, "down")
        kinds = (
            pillow.shear(across, down),
            pillow.translate(across * width, down * height),
            pillow.rotate(across * 360, height, width),
        )
        kind = randomness.draw(keys, "geometry", len(kinds))
        return pillow.affine(images, groups.pick(kind, kinds))

    def brightness(images, keys):
        return pillow.brightness(images, 1 + signed(keys, "amount"))

    def color(images, keys):
        return pillow.color(images, 1 - tf.abs(signed(keys, "amount")))

    def contrast(images, keys):
        return pillow.contrast(images, 1 + signed(keys, "amount"))

    def sharpness(images, keys):
        return pillow.sharpness(images, 1 + signed(keys, "amount"))

    def posterize(images, keys):
        bits = max(1, int(8 * magnitude))
        return pillow.posterize(images, tf.fill(tf.shape(keys), bits))

    def solarize(images, keys):
        additions = upto(keys, "addition", 255 * magnitude)
        return pillow.solarize(images, upto(keys, "threshold", 255 * magnitude), additions)

    def autocontrast(images, keys):
        return pillow.autocontrast(images)

    def equalize(images, keys):
        return pillow.equalize(images)

    return [
        geometry, brightness, color, contrast, sharpness, posterize, solarize,
        autocontrast, equalize,
    ]  # fmt: skip
