"""What turns uint8 images into a model's input, as numbers that a file can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from tfaccel.errors import UserError


@dataclasses.dataclass(frozen=True)
class Normalization:
    """images * scale + offset, a channel at a time.

    Args:
        scale: One factor a channel.
        offset: One term a channel.
    """

    scale: tuple[float, ...]
    offset: tuple[float, ...]

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Returns uint8 images [..., channels] as the float32 input of the model."""
        scale, offset = np.float32(self.scale), np.float32(self.offset)
        return images.astype(np.float32) * scale + offset


def from_function(normalize: Callable, channels: int) -> Normalization:
    """Returns a function such as `tfaccel.data.normalize.build` gives, as numbers.

    Args:
        normalize: A function (images [..., channels] of 0..255) -> float32.
        channels: How many channels images have.

    Raises:
        UserError: If the function does anything but scale and shift each channel.

    Example:
        >>> from_function(lambda images: images / np.float32(255), 1).offset
        (0.0,)
    """
    grey = np.repeat(np.arange(256, dtype=np.uint8)[:, None], channels, axis=1)
    values = np.float64(np.asarray(normalize(grey)))
    scale, offset = (values[255] - values[0]) / 255, values[0]
    error = np.abs(grey * scale + offset - values).max()
    if error > 1e-5 * max(1.0, np.abs(values).max()):
        raise UserError(
            "the normalisation of the images is not a factor and a term for each channel "
            f"(off by {error:.2g}), so it cannot be put into a file: leave "
            "include_preprocessing out and normalise before the model."
        )
    return Normalization(tuple(map(float, scale)), tuple(map(float, offset)))
