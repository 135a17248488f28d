"""Putting augmentations together."""

from __future__ import annotations

from collections.abc import Callable

from tfaccel.lazy import tf


def augmentation(function: Callable) -> Callable:
    """Marks a function of TensorFlow's operations: tracing takes it as it is.

    Without it, `dataset.map` rewrites every function that it calls, which takes
    several times as long as tracing them.
    """
    return tf.autograph.experimental.do_not_convert(function)


def unchanged(images, keys):
    """The augmentation that does nothing: what a builder returns when switched off."""
    del keys
    return images


def chain(*functions: Callable) -> Callable:
    """Returns the function (images, keys) -> images that applies some in turn.

    Example:
        augment = chain(randaugment.build(number=2), shift.build(flip=True))
    """

    def augment(images, keys):
        for function in functions:
            images = function(images, keys)
        return images

    return augmentation(augment)
