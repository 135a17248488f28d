"""Normalisation of uint8 images to the numbers a model is fed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from tfaccel import fields
from tfaccel.data.source import Source
from tfaccel.lazy import tf

Normalize = Literal["dataset", "unit", "none"]


def build(
    statistics: Callable[[], tuple[np.ndarray, np.ndarray]],
    *,
    normalize: Normalize = "dataset",
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from images of 0..255 to float32.

    Args:
        statistics: Returns the (mean, standard deviation) of each channel of
            the training images; called only if needed.
        normalize: "dataset" to mean 0 and deviation 1 over the training images,
            "unit" to 0..1, "none" to leave 0..255 for a model that rescales.

    Returns:
        A function (images [..., channels]) -> float32 of the same shape.
    """
    fields.check(Normalize, normalize, "data.normalize")
    mean, deviation = np.float32(0), np.float32(1)
    if normalize == "unit":
        deviation = np.float32(255)
    elif normalize == "dataset":
        mean, deviation = statistics()
    scale = np.float32(1) / deviation

    def apply(images):
        return (tf.cast(images, tf.float32) - _row(mean, images)) * _row(scale, images)

    return apply


def channel_statistics(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Returns the exact mean and deviation of each channel of a source's images.

    Args:
        source: Images of dtype uint8.

    Returns:
        (mean float32 [channels], deviation float32 [channels]); a channel that
        never varies gets deviation 1.
    """
    counts = np.zeros((source.image_shape[-1], 256), np.int64)
    for start in range(0, len(source), 4096):
        images = source.images[source.index[start : start + 4096]]
        for channel, row in enumerate(counts):
            row += np.bincount(images[..., channel].ravel(), minlength=256)
    values = np.arange(256, dtype=np.float64)
    shares = counts / counts.sum(axis=1, keepdims=True)
    means = shares @ values
    variances = (shares * (values - means[:, None]) ** 2).sum(axis=1)
    deviations = np.sqrt(np.where(variances > 0, variances, 1.0))
    return np.float32(means), np.float32(deviations)


def _row(values, images):
    """Repeats a number a channel for a whole row: pixel by pixel is far slower."""
    if np.ndim(values) == 0:
        return values
    return np.broadcast_to(values, images.shape[-2:])
