"""What a pipeline needs of a dataset: labelled images, fetched by index."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import re
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from tfaccel import randomness
from tfaccel.data import labels as labels_lib
from tfaccel.errors import UserError
from tfaccel.lazy import tf


class Source(abc.ABC):
    """Labelled uint8 images of one shape, fetched by index.

    Attributes:
        name: What to call it in messages.
        class_names: One name a class.
        image_shape: (height, width, channels) of every image as it is fetched.
    """

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns how many examples there are."""

    @abc.abstractmethod
    def subset(self, examples: np.ndarray) -> Source:
        """Returns the source of some of these examples; the images are shared."""

    @abc.abstractmethod
    def fetch(self, examples: tf.Tensor, keys=None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (images uint8 [b, height, width, channels], labels int32 [b]).

        Args:
            examples: int64 tensor [b], each from 0 to len(self) - 1.
            keys: uint32 [b], for sources of images of varying size: an example's
                key decides which part of it is cut out for training. None for
                evaluation, and for sources whose images have one size.
        """

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def class_counts(self) -> np.ndarray | None:
        """Returns how many examples each class has, int64 [classes]; None if unknown."""
        return None

    def sample(self, count: int) -> ArraySource:
        """Returns up to `count` examples, evenly chosen, as a source in memory.

        From it come statistics that would take too long to gather from all.
        """
        chosen = np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64)
        dataset = tf.data.Dataset.from_tensor_slices(chosen)
        parts = dataset.batch(64).map(self.fetch, num_parallel_calls=tf.data.AUTOTUNE)
        with read_errors():
            images, labels = zip(*parts.as_numpy_iterator(), strict=True)
        return from_arrays(
            np.concatenate(images), np.concatenate(labels), self.class_names, self.name
        )


@dataclasses.dataclass(frozen=True)
class ArraySource(Source):
    """Labelled uint8 images in memory; whole batches are gathered at once.

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

    def subset(self, examples: np.ndarray) -> ArraySource:
        """Returns the source of some of these examples; the images are shared."""
        return dataclasses.replace(self, index=self.index[examples])

    def fetch(self, examples: tf.Tensor, keys=None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (images, labels) of some examples; images come as they are."""
        images, labels, index = self._tensors
        rows = tf.gather(index, examples)
        return tf.gather(images, rows), tf.gather(labels, rows)

    def class_counts(self) -> np.ndarray:
        """Returns how many examples each class has, int64 [classes]."""
        return np.bincount(self.labels[self.index], minlength=self.num_classes)

    def sample(self, count: int) -> ArraySource:
        """Returns this source: its images lie in memory already."""
        return self

    @cached_property
    def _tensors(self):
        with tf.device("CPU:0"), tf.init_scope():
            arrays = (self.images, self.labels, self.index)
            return tuple(tf.convert_to_tensor(array) for array in arrays)


def from_arrays(
    images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...] = (), name="arrays"
) -> ArraySource:
    """Returns a source of the caller's own arrays.

    Args:
        images: uint8 [n, height, width, channels] or [n, height, width].
        labels: Whole numbers [n] or [n, 1], one-hot rows [n, classes], or texts
            [n] that are in `class_names`.
        class_names: One name a class; "0", "1", ... if empty.
        name: What to call it in messages.

    Raises:
        UserError: If shapes, dtypes or label values do not fit.
    """
    images = np.asarray(images)
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4:
        raise UserError(
            f"{name}: received images of dtype {images.dtype} and shape "
            f"{images.shape}, expected uint8 [n, height, width, channels]."
        )
    labels, class_names = labels_lib.whole_numbers(labels, len(images), class_names, name)
    return ArraySource(
        name, images, labels, class_names, np.arange(len(images), dtype=np.int64)
    )


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


@contextlib.contextmanager
def read_errors() -> Iterator[None]:
    """Makes a `UserError` raised while reading, deep in TensorFlow, one again."""
    try:
        yield
    except tf.errors.OpError as error:
        match = re.search(r"UserError: ([^\n]+)", error.message or "")
        if match is None:
            raise
        raise UserError(match[1]) from error
