"""One source of labelled images, which fetches by index."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from tfaccel import randomness
from tfaccel.errors import UserError
from tfaccel.lazy import tf


@dataclasses.dataclass(frozen=True)
class Source:
    """Labelled uint8 images in memory, fetched by index.

    Args:
        name: What to call it in messages.
        images: uint8 [n, height, width, channels].
        labels: int32 [n], from 0 to the number of classes - 1.
        class_names: One name a class.
        index: Which of the images belong to this source, int64 [n].
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        return tuple(self.images.shape[1:])

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def subset(self, examples: np.ndarray) -> Source:
        """Returns the source of some of these examples; the images are shared."""
        return dataclasses.replace(self, index=self.index[examples])

    def fetch(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (images uint8 [b, ...], labels int32 [b]) of some examples.

        Args:
            examples: int64 tensor [b], each from 0 to len(self) - 1.
        """
        images, labels, index = self._tensors
        rows = tf.gather(index, examples)
        return tf.gather(images, rows), tf.gather(labels, rows)

    @cached_property
    def _tensors(self):
        with tf.device("CPU:0"), tf.init_scope():
            arrays = (self.images, self.labels, self.index)
            return tuple(tf.convert_to_tensor(array) for array in arrays)


def from_arrays(
    images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...] = (), name="arrays"
) -> Source:
    """Returns a source of the caller's own arrays.

    Args:
        images: uint8 [n, height, width, channels] or [n, height, width].
        labels: Whole numbers [n] or [n, 1].
        class_names: One name a class; "0", "1", ... if empty.
        name: What to call it in messages.

    Raises:
        UserError: If shapes, dtypes or label values do not fit.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4:
        raise UserError(
            f"{name}: received images of dtype {images.dtype} and shape "
            f"{images.shape}, expected uint8 [n, height, width, channels]."
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise UserError(
            f"{name}: received labels of dtype {labels.dtype} and shape {labels.shape} "
            f"for {len(images)} images, expected whole numbers of shape ({len(images)},)."
        )
    if len(labels) == 0:
        raise UserError(f"{name}: received no images, expected at least one.")
    class_names = class_names or tuple(map(str, range(int(labels.max()) + 1)))
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(class_names):
        raise UserError(
            f"{name}: received labels from {low} to {high}, expected 0 to "
            f"{len(class_names) - 1} ({len(class_names)} classes)."
        )
    index = np.arange(len(images), dtype=np.int64)
    return Source(name, images, labels.astype(np.int32), tuple(class_names), index)


def hold_out(source: Source, share: float, purpose: str) -> tuple[Source, Source]:
    """Splits a source in two disjoint ones: (the rest, the share held out).

    The choice depends on the purpose and the number of examples alone.

    Raises:
        UserError: If either part would be empty.
    """
    count = round(share * len(source))
    if not 0 < count < len(source):
        raise UserError(
            f"received a {purpose} share of {share} of {len(source)} examples, which "
            f"is {count}: expected at least one on both sides."
        )
    scores = randomness.mix(tf.range(len(source)), randomness.purpose(purpose)).numpy()
    ranked = np.argsort(scores, kind="stable")
    return source.subset(np.sort(ranked[count:])), source.subset(np.sort(ranked[:count]))
