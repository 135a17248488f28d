"""The user's own data: what a function "module:function" returns, as sources."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np

from tfaccel import user_code
from tfaccel.data.per_image import OnBadImage, PerImageSource
from tfaccel.data.source import Source, from_arrays
from tfaccel.errors import UserError, one_line
from tfaccel.lazy import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceSource(PerImageSource):
    """Any Python object that has a length and gives (image, label) for an index.

    Items are fetched by several threads at once, which share Python's lock.

    Args:
        items: Has `__len__` and `__getitem__`; an item is (image uint8 [height,
            width, channels], label).
        shape: (height, width, channels) of every image.
    """

    items: Any
    shape: tuple[int, int, int]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        return self.shape

    def details(self, rows, keys) -> dict[str, tf.Tensor]:
        """Returns nothing: an item's number is all that is needed."""
        return {}

    def read(self, detail) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (image, label) of one item."""
        image, label = tf.numpy_function(self._item, [detail["row"]], (tf.uint8, tf.int32))
        image.set_shape(self.shape)
        label.set_shape([])
        return image, label

    def title(self, row: int) -> str:
        """Returns the item's place."""
        return f"item {row} of {self.name}"

    def reason(self, row: int) -> str:
        """Returns what is wrong with an item."""
        try:
            self._item(row)
        except Exception as error:  # It is the user's code that raises.
            return one_line(error, 160)
        return "it could not be read a moment ago"

    def _item(self, row) -> tuple[np.ndarray, np.int32]:
        image, label = self.items[int(row)]
        image = np.asarray(image)
        if image.shape != self.shape or image.dtype != np.uint8:
            raise ValueError(
                f"image of dtype {image.dtype} and shape {image.shape}, expected uint8 "
                f"{self.shape}"
            )
        if not 0 <= int(label) < len(self.class_names):
            raise ValueError(f"label {label}, expected 0 to {len(self.class_names) - 1}")
        return image, np.int32(label)


def load(name: str, dir: str | None, on_bad_image: OnBadImage = "fail") -> dict[str, Source]:
    """Returns the sources that a user's function makes, by split.

    The function returns a dictionary of "train" and, if there are, "test" and
    "validation"; each is a `Source`, a pair (images, labels) or triple (images,
    labels, class names) of arrays, or an object with a length that gives (image,
    label) for an index and may have `class_names`.

    Args:
        name: "module:function".
        dir: Handed to the function as `dir`, if not None.
        on_bad_image: What becomes of items that raise.

    Raises:
        UserError: If the function returns anything else.
    """
    function = user_code.function(name, "data.name")
    if dir is not None and "dir" not in inspect.signature(function).parameters:
        raise UserError(
            f"received data.dir={dir}, but {name} has no argument 'dir': leave it out, or add "
            "the argument."
        )
    parts = function(**({} if dir is None else {"dir": dir}))
    if not isinstance(parts, dict) or "train" not in parts:
        raise UserError(
            f"data.name={name} returned {_kind(parts)}, expected a dictionary with 'train' "
            "and, if there are, 'test' and 'validation'."
        )
    unknown = set(parts) - {"train", "test", "validation"}
    if unknown:
        raise UserError(
            f"data.name={name} returned the split(s) {', '.join(sorted(map(str, unknown)))}, "
            "expected train, test and validation."
        )
    train = _source(parts["train"], f"{name} train", (), on_bad_image)
    others = {
        split: _source(part, f"{name} {split}", train.class_names, on_bad_image)
        for split, part in parts.items()
        if split != "train"
    }
    return {"train": train, **others}


def _source(part, title: str, names: tuple[str, ...], on_bad_image) -> Source:
    if isinstance(part, Source):
        return part
    if isinstance(part, (tuple, list)) and len(part) in (2, 3) and np.ndim(part[0]) > 2:
        return from_arrays(part[0], part[1], names or tuple(part[2:] and part[2]), title)
    if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
        raise UserError(
            f"{title} is {_kind(part)}, expected a tfaccel.data.source.Source, arrays "
            "(images, labels), or an object with a length and items (image, label)."
        )
    return _sequence(part, title, names, on_bad_image)


def _sequence(items, title: str, names: tuple[str, ...], on_bad_image) -> SequenceSource:
    if not len(items):
        raise UserError(f"{title} is empty, expected at least one item (image, label).")
    names = names or tuple(map(str, getattr(items, "class_names", None) or ()))
    if not names:
        raise UserError(
            f"{title} does not say which classes there are: give the object an attribute "
            "class_names, one name for each label."
        )
    try:
        image, _ = items[0]
    except Exception as error:  # It is the user's code that raises.
        raise UserError(
            f"item 0 of {title} cannot be read ({one_line(error, 160)}), expected (image, "
            "label)."
        ) from error
    rows, shape = np.arange(len(items)), tuple(np.shape(image))
    if len(shape) != 3 or np.asarray(image).dtype != np.uint8:
        raise UserError(
            f"item 0 of {title} holds an image of dtype {np.asarray(image).dtype} and shape "
            f"{shape}, expected uint8 (height, width, channels)."
        )
    return SequenceSource(title, names, rows, on_bad_image, items=items, shape=shape)


def _kind(thing) -> str:
    name = type(thing).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
