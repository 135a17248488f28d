"""Sources that read each example by itself, and what becomes of unreadable ones."""

from __future__ import annotations

import abc
import dataclasses
from functools import cached_property
from typing import Literal

import numpy as np

from tfaccel import randomness
from tfaccel.data.source import Source
from tfaccel.errors import UserError
from tfaccel.lazy import tf
from tfaccel.log import logger

OnBadImage = Literal["fail", "skip"]

# With "skip": examples tried in another's place before a run gives up.
_TRIES = 8


class BadImages:
    """The images that could not be read so far, each named once."""

    def __init__(self):
        self.reasons: dict[str, str] = {}

    def note(self, name: str, reason: str) -> None:
        """Warns of an image, the first time it is met."""
        if name not in self.reasons:
            self.reasons[name] = reason
            logger.warning(
                "data: %s cannot be read (%s); another example takes its place (%d so far)",
                name, reason, len(self.reasons),
            )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PerImageSource(Source):
    """A source that reads each example by itself, such as from a file.

    Pipelines read many examples at once and batch them afterwards. What can be
    worked out for a whole batch is done first, in `requests`.

    Args:
        name: What to call it in messages.
        class_names: One name a class.
        rows: Which examples of the dataset belong to this source, int64 [n].
        on_bad_image: "fail", or "skip" to put another example of the source, drawn
            by a hash, in the place of one that cannot be read.
        bad: The images found unreadable so far, shared by all subsets.
    """

    name: str
    class_names: tuple[str, ...]
    rows: np.ndarray
    on_bad_image: OnBadImage = "fail"
    bad: BadImages = dataclasses.field(default_factory=BadImages, repr=False)

    @abc.abstractmethod
    def details(self, rows: tf.Tensor, keys) -> dict[str, tf.Tensor]:
        """Returns what `read` needs of some rows: tensors [n, ...] by name.

        Args:
            rows: int64 [n].
            keys: uint32 [n], or None; see `Source.fetch`.
        """

    @abc.abstractmethod
    def read(self, detail: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (image uint8 [height, width, channels], label int32 []) of one row.

        Args:
            detail: One row's "row" and `details`.
        """

    @abc.abstractmethod
    def title(self, row: int) -> str:
        """Returns what to call an example in messages, such as its path."""

    def reason(self, row: int) -> str:
        """Returns why an example cannot be read."""
        return "its content is damaged"

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, examples: np.ndarray) -> PerImageSource:
        """Returns the source of some of these examples; all else is shared."""
        return dataclasses.replace(self, rows=self.rows[examples])

    def fetch(self, examples: tf.Tensor, keys=None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (images, labels) of some examples; see `Source.fetch`."""
        spec = tf.TensorSpec(self.image_shape, tf.uint8), tf.TensorSpec([], tf.int32)
        return tf.map_fn(self.load, self.requests(examples, keys), fn_output_signature=spec)

    def requests(self, examples: tf.Tensor, keys=None) -> dict[str, tf.Tensor]:
        """Returns what `load` needs of each example: tensors [b, tries, ...] by name."""
        tries = _TRIES if self.on_bad_image == "skip" else 1
        rows = tf.gather(self._rows, self._candidates(examples, tries))
        # An example keeps its key whichever other comes to stand for it.
        keys = None if keys is None else tf.repeat(keys, tries)
        request = {"row": rows}
        for name, value in self.details(tf.reshape(rows, [-1]), keys).items():
            shape = tf.concat([[-1, tries], tf.shape(value)[1:]], axis=0)
            request[name] = tf.ensure_shape(
                tf.reshape(value, shape), [None, tries, *value.shape[1:]]
            )
        return request

    def load(self, request: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the (image, label) of the first row of a request that can be read."""

        def read(detail):
            image, label = self.read(detail)
            return tf.ensure_shape(image, self.image_shape), label, detail["row"]

        # A dataset is the one way to catch an error in a graph and go on.
        rows = tf.data.Dataset.from_tensor_slices(request).map(read).ignore_errors()
        none = tf.zeros(self.image_shape, tf.uint8), tf.constant(-1), tf.constant(-1, tf.int64)
        rows = rows.concatenate(tf.data.Dataset.from_tensors(none)).take(1)
        image, label, row = rows.get_single_element()
        with tf.control_dependencies([self._checked(request["row"], row)]):
            return tf.identity(image), label

    def _candidates(self, examples, tries: int):
        """The examples themselves, and those to try in their place, int64 [b, tries]."""
        words = [randomness.purpose(f"in place {i}") for i in range(1, tries)]
        others = [randomness.below(randomness.mix(examples, w), len(self)) for w in words]
        return tf.stack([examples, *(tf.cast(other, tf.int64) for other in others)], axis=1)

    def _checked(self, rows, row):
        """Tells of rows that could not be read; costs nothing while all can."""

        def tell():
            return tf.numpy_function(self._tell, [rows, row], tf.bool)

        return tf.cond(tf.equal(row, rows[0]), lambda: True, tell)

    def _tell(self, rows: np.ndarray, row: int) -> np.bool_:
        if row < 0:
            raise UserError(self.unreadable(rows[0], len(rows) - 1))
        for bad in rows[: int(np.argmax(rows == row))]:
            self.bad.note(self.title(bad), self.reason(bad))
        return np.bool_(True)

    def unreadable(self, row: int, more: int = 0) -> str:
        """Returns the line for an example that cannot be read."""
        others = f", and {more} other(s) neither" if more else ""
        return (
            f"{self.title(row)} cannot be read ({self.reason(row)}){others}: delete or mend "
            "it, or go on without it by --config.data.on_bad_image=skip."
        )

    @cached_property
    def _rows(self):
        with tf.device("CPU:0"), tf.init_scope():
            return tf.convert_to_tensor(self.rows)
