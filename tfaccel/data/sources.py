"""Datasets by name: train, validation and test sources."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np

from tfaccel import user_code
from tfaccel.data import cifar, class_folders, folder_sets, own_sets, tfds_sets
from tfaccel.data.per_image import OnBadImage
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
_OWN = ("digits", "folder", "npz", "synthetic")
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
    if image_size:
        return image_size, image_size, 3
    if name == "synthetic":
        return _SYNTHETIC_SIZE, _SYNTHETIC_SIZE, 3
    return _KNOWN_SHAPES.get(re.split("[:/]", name)[0])


def check(
    *,
    name: str,
    dir: str | None,
    validation_share: Share,
    memory_share: Share,
    image_size: PositiveInt | None,
    crop_area: Share,
    on_bad_image: OnBadImage,
    num_classes: PositiveInt | None,
    num_examples: PositiveInt | None,
) -> None:
    """Refuses a dataset that does not exist; knows TFDS's names without a network."""
    del memory_share, on_bad_image
    if crop_area == 0:
        raise UserError(
            "received data.crop_area=0.0, expected more than 0: a crop would show nothing. "
            "0.08 is usual."
        )
    sizes = {"data.num_classes": num_classes, "data.num_examples": num_examples}
    if name in ("digits", "npz") or name in _KNOWN_SHAPES or _is_function(name):
        sizes["data.image_size"] = image_size
    given = [field for field, value in sizes.items() if value is not None]
    if given and name != "synthetic":
        who = "'synthetic' images can be made to measure"
        if given[0] == "data.image_size":
            who = "'synthetic' images, those of folders and of TFDS can be brought to a size"
        raise UserError(
            f"received {given[0]}={sizes[given[0]]} for data.name={name}, but only {who}: "
            "leave it out."
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
    if name == "folder" and dir is not None:
        class_folders.find(Path(dir))
    elif _is_function(name):
        user_code.check_name(name, "data.name")
    elif name not in _OWN and cifar.find(name, dir) is None:
        tfds_sets.check_name(name, dir, _OWN)


def load(
    *,
    name: str = "digits",
    dir: str | None = None,
    validation_share: Share = 0.1,
    memory_share: Share = 0.5,
    image_size: PositiveInt | None = None,
    crop_area: Share = 0.08,
    on_bad_image: OnBadImage = "fail",
    num_classes: PositiveInt | None = None,
    num_examples: PositiveInt | None = None,
) -> Splits:
    """Returns the train, validation and test sources of a dataset.

    Args:
        name: "digits" (1,797 handwritten digits that come with scikit-learn),
            "synthetic", "npz", "folder", any TFDS image classification set, such
            as "cifar10", or "module:function"; see `own_sets.load`.
        dir: The folder of class folders, TFDS's data_dir, a folder of CIFAR
            batches, or the .npz file of arrays x_train, y_train, x_test, y_test
            and, if labels are texts, class_names.
        validation_share: Share of the training examples kept for validation;
            the same ones whatever the seed. Where the data have a validation
            set of their own it is taken instead, unless the share is 0.
        memory_share: Share of the memory that decoded images may take.
        image_size: Height and width of "synthetic" images (32 by default), or
            those to which images of varying size are brought (224 by default).
        crop_area: Smallest share of the area of an image of varying size that a
            training crop shows (a random-resized-crop); 1 cuts from the middle,
            as evaluation does.
        on_bad_image: "fail" at the first image that cannot be read, or "skip"
            it: another takes its place. For images read one by one.
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
        crop_area=crop_area,
        on_bad_image=on_bad_image,
        num_classes=num_classes,
        num_examples=num_examples,
    )
    if name == "synthetic":
        parts = _synthetic(
            image_size or _SYNTHETIC_SIZE, num_classes or 10, num_examples or 1024
        )
    elif name == "digits":
        parts = {"all": _digits()}
    elif name == "npz":
        parts = _npz(Path(dir))
    elif name == "folder":
        parts = _folder(dir, image_size, crop_area, on_bad_image)
    elif _is_function(name):
        parts = own_sets.load(name, dir, on_bad_image)
    elif cifar.find(name, dir) is not None:
        parts = cifar.load(name, dir)
    else:
        parts = tfds_sets.load(name, dir, memory_share, image_size, crop_area, on_bad_image)
    splits = _splits(parts, validation_share)
    logger.info(
        "data: %s, %d training, %d validation and %d test images of %s, %d classes",
        name, len(splits.train), len(splits.validation or ()), len(splits.test),
        "x".join(map(str, splits.train.image_shape)), splits.train.num_classes,
    )  # fmt: skip
    return splits


def _splits(parts: dict[str, Source], validation_share: float) -> Splits:
    """Returns disjoint splits of the parts that a dataset comes in."""
    train = parts["train"] if "train" in parts else parts["all"]
    test, validation = parts.get("test"), parts.get("validation")
    if test is None and validation is not None:
        test, validation = validation, None
    if test is None:
        train, test = hold_out(train, _TEST_SHARE, "test")
    if not validation_share:
        validation = None
    elif validation is None:
        train, validation = hold_out(train, validation_share, "validation")
    return Splits(train, validation, test)


def _is_function(name: str) -> bool:
    """TFDS has colons, too, before a version: "cifar10:3.0.2"."""
    return name.partition(":")[2].isidentifier()


def _folder(dir: str | None, image_size, crop_area, on_bad_image) -> dict[str, Source]:
    if dir is None:
        raise UserError(
            "received data.name=folder without data.dir, expected --config.data.dir=FOLDER, "
            "a folder with one folder of images for each class."
        )
    return folder_sets.load(
        Path(dir), image_size=image_size, crop_area=crop_area, on_bad_image=on_bad_image
    )


def _digits() -> Source:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    enlarged = pixels.repeat(4, axis=1).repeat(4, axis=2)
    images = np.repeat(enlarged[..., None], 3, axis=-1)
    return from_arrays(images, digits.target, name="digits")


def _synthetic(size: int, num_classes: int, count: int) -> dict[str, Source]:
    """Noise around one random picture a class: learnable, and made in a moment."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % num_classes
    pictures = random.integers(64, 192, (num_classes, size, size, 3))
    noise = random.integers(-64, 64, (count, size, size, 3))
    images = (pictures[labels] + noise).astype(np.uint8)
    names = tuple(map(str, range(num_classes)))
    return {"all": from_arrays(images, labels, names, "synthetic")}


def _npz(path: Path) -> dict[str, Source]:
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
            names = tuple(arrays["class_names"].tolist()) if "class_names" in arrays else ()
    except UserError:
        raise
    except Exception as error:  # NumPy raises many kinds for a damaged file.
        raise UserError(f"{path} cannot be read as .npz: {one_line(error)}") from error
    train = from_arrays(x_train, y_train, names, f"{path}: train")
    test = from_arrays(x_test, y_test, train.class_names, f"{path}: test")
    if test.image_shape != train.image_shape:
        raise UserError(
            f"{path} holds training images of {train.image_shape} and test images of "
            f"{test.image_shape}, expected one shape (height, width, channels)."
        )
    return {"train": train, "test": test}
