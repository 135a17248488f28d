"""Datasets by name: train, validation and test sources."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np

from tfaccel.data import tfds_sets
from tfaccel.data.source import Source, from_arrays, hold_out
from tfaccel.errors import UserError, one_line
from tfaccel.fields import PositiveInt, Share
from tfaccel.log import logger

_KNOWN_SHAPES = {
    "digits": (32, 32, 3),
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "mnist": (28, 28, 1),
    "fashion_mnist": (28, 28, 1),
}
_OWN = ("digits", "npz", "synthetic")
_TEST_SHARE = 0.2
_SYNTHETIC_SIZE = 32


@dataclasses.dataclass(frozen=True)
class Splits:
    """The disjoint parts of a dataset; `validation` is None if not asked for."""

    train: Source
    validation: Source | None
    test: Source


def known_shape(name: str, image_size: int | None = None) -> tuple[int, int, int] | None:
    """Returns the (height, width, channels) of a dataset before it is read, if known."""
    if name == "synthetic":
        return image_size or _SYNTHETIC_SIZE, image_size or _SYNTHETIC_SIZE, 3
    return _KNOWN_SHAPES.get(re.split("[:/]", name)[0])


def check(
    *,
    name: str,
    dir: str | None,
    validation_share: Share,
    memory_share: Share,
    image_size: PositiveInt | None,
    num_classes: PositiveInt | None,
    num_examples: PositiveInt | None,
) -> None:
    """Refuses a dataset that does not exist; knows TFDS's names without a network."""
    del memory_share
    sizes = {
        "data.image_size": image_size,
        "data.num_classes": num_classes,
        "data.num_examples": num_examples,
    }
    given = [field for field, value in sizes.items() if value is not None]
    if given and name != "synthetic":
        raise UserError(
            f"received {given[0]}={sizes[given[0]]} for data.name={name}, but only "
            "'synthetic' images can be made to measure: leave it out."
        )
    if validation_share == 1:
        raise UserError(
            "received data.validation_share=1.0, expected less than 1: nothing "
            "would be left to train on."
        )
    if name == "npz" and not (dir and Path(dir).is_file()):
        raise UserError(
            f"received data.name=npz with data.dir={dir!r}, expected the path of an "
            ".npz file that holds x_train, y_train, x_test, y_test."
        )
    if name not in _OWN:
        tfds_sets.check_name(name, dir, _OWN)


def load(
    *,
    name: str = "digits",
    dir: str | None = None,
    validation_share: Share = 0.1,
    memory_share: Share = 0.5,
    image_size: PositiveInt | None = None,
    num_classes: PositiveInt | None = None,
    num_examples: PositiveInt | None = None,
) -> Splits:
    """Returns the train, validation and test sources of a dataset.

    Args:
        name: "digits" (1,797 handwritten digits that come with scikit-learn),
            "synthetic", "npz" or any TFDS image classification set, such as
            "cifar10".
        dir: TFDS's data_dir, or the .npz file of arrays x_train, y_train,
            x_test, y_test.
        validation_share: Share of the training examples kept for validation;
            the same ones whatever the seed.
        memory_share: Share of the memory that decoded images may take.
        image_size: Height and width of "synthetic" images; 32 by default.
        num_classes: Classes of "synthetic" images; 10 by default.
        num_examples: How many "synthetic" images; 1,024 by default.

    Raises:
        UserError: If the dataset is unknown, absent, damaged or too large.
    """
    check(
        name=name,
        dir=dir,
        validation_share=validation_share,
        memory_share=memory_share,
        image_size=image_size,
        num_classes=num_classes,
        num_examples=num_examples,
    )
    if name == "digits":
        train, test = _digits()
    elif name == "synthetic":
        train, test = _synthetic(
            image_size or _SYNTHETIC_SIZE, num_classes or 10, num_examples or 1024
        )
    elif name == "npz":
        train, test = _npz(Path(dir))
    else:
        parts = tfds_sets.load(name, dir, memory_share)
        train, test = parts if len(parts) == 2 else hold_out(parts[0], _TEST_SHARE, "test")
    validation = None
    if validation_share:
        train, validation = hold_out(train, validation_share, "validation")
    logger.info(
        "data: %s, %d training, %d validation and %d test images of %s, %d classes",
        name, len(train), len(validation or ()), len(test),
        "x".join(map(str, train.image_shape)), train.num_classes,
    )  # fmt: skip
    return Splits(train, validation, test)


def _digits() -> tuple[Source, Source]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    enlarged = pixels.repeat(4, axis=1).repeat(4, axis=2)
    images = np.repeat(enlarged[..., None], 3, axis=-1)
    source = from_arrays(images, digits.target, name="digits")
    return hold_out(source, _TEST_SHARE, "test")


def _synthetic(size: int, num_classes: int, count: int) -> tuple[Source, Source]:
    """Noise around one random picture a class: learnable, and made in a moment."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % num_classes
    pictures = random.integers(64, 192, (num_classes, size, size, 3))
    noise = random.integers(-64, 64, (count, size, size, 3))
    images = (pictures[labels] + noise).astype(np.uint8)
    names = tuple(map(str, range(num_classes)))
    return hold_out(from_arrays(images, labels, names, "synthetic"), _TEST_SHARE, "test")


def _npz(path: Path) -> tuple[Source, Source]:
    wanted = ("x_train", "y_train", "x_test", "y_test")
    try:
        with np.load(path) as arrays:
            missing = [name for name in wanted if name not in arrays]
            if missing:
                raise UserError(
                    f"{path} holds {', '.join(arrays) or 'nothing'}, expected "
                    f"{', '.join(wanted)}: {', '.join(missing)} missing."
                )
            x_train, y_train, x_test, y_test = (arrays[name] for name in wanted)
    except UserError:
        raise
    except Exception as error:  # NumPy raises many kinds for a damaged file.
        raise UserError(f"{path} cannot be read as .npz: {one_line(error)}") from error
    train = from_arrays(x_train, y_train, name=f"{path}: train")
    test = from_arrays(x_test, y_test, train.class_names, f"{path}: test")
    if test.image_shape != train.image_shape:
        raise UserError(
            f"{path} holds training images of {train.image_shape} and test images of "
            f"{test.image_shape}, expected one shape (height, width, channels)."
        )
    return train, test
