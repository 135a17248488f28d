"""Where images come from: every source fetches by index."""

from __future__ import annotations

import dataclasses
import re
from functools import cached_property
from pathlib import Path

import numpy as np

from tfaccel import host, randomness
from tfaccel.errors import UserError, did_you_mean, one_line
from tfaccel.fields import PositiveInt, Share
from tfaccel.lazy import tf
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
        _check_tfds_name(name, dir)


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
        train, test = _tfds(name, dir, memory_share)
    validation = None
    if validation_share:
        train, validation = hold_out(train, validation_share, "validation")
    logger.info(
        "data: %s, %d training, %d validation and %d test images of %s, %d classes",
        name, len(train), len(validation or ()), len(test),
        "x".join(map(str, train.image_shape)), train.num_classes,
    )  # fmt: skip
    return Splits(train, validation, test)


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
    return train, from_arrays(x_test, y_test, train.class_names, f"{path}: test")


def _check_tfds_name(name: str, dir: str | None) -> None:
    import tensorflow_datasets as tfds

    base = re.split("[:/]", name)[0]
    known = tfds.list_builders(with_community_datasets=False)
    if base not in known and not (dir and (Path(dir) / base).is_dir()):
        raise UserError(
            f"received data.name={name}, which is neither {', '.join(_OWN)} nor a "
            f"TFDS dataset. {did_you_mean(base, [*_OWN, *known])}".strip()
        )


def _tfds(name: str, dir: str | None, memory_share: float) -> tuple[Source, Source]:
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=dir)
    except Exception as error:
        raise UserError(f"TFDS cannot open {name}: {one_line(error)}") from error
    _prepare(builder)
    features, splits = dict(builder.info.features.items()), builder.info.splits
    shape = getattr(features.get("image"), "shape", None)
    label = features.get("label")
    if shape is None or not isinstance(label, tfds.features.ClassLabel):
        raise UserError(
            f"{name} has the features {', '.join(features)}, expected an image and a "
            "class label: it is no image classification set."
        )
    if None in shape:
        raise UserError(
            f"{name} has images of varying size, which is not supported yet: use a set "
            "of fixed size, such as cifar10."
        )
    test = next((s for s in ("test", "validation") if s in splits), None)
    wanted = ["train"] if test is None else ["train", test]
    if "train" not in splits:
        raise UserError(f"{name} has the splits {', '.join(splits)}, expected 'train'.")
    _check_memory(name, shape, sum(splits[s].num_examples for s in wanted), memory_share)
    parts = [_decode(builder, split, shape, tuple(label.names)) for split in wanted]
    return tuple(parts) if test else hold_out(parts[0], _TEST_SHARE, "test")


def _prepare(builder) -> None:
    if builder.is_prepared():
        return
    logger.info("data: %s is not in %s yet; fetching it", builder.name, builder.data_dir)
    try:
        # TFDS itself would go on trying for minutes.
        host.check_network()
        builder.download_and_prepare()
    except Exception as error:  # Each dataset fails in its own way.
        raise UserError(
            f"{builder.name} is not prepared in {builder.data_dir} and could not be "
            f"fetched ({one_line(error, 160)}): prepare it where there is a network (tfds "
            f"build {builder.name} --data_dir=FOLDER) and add --config.data.dir=FOLDER."
        ) from error


def _check_memory(name: str, shape, count: int, share: float) -> None:
    needed, present = count * int(np.prod(shape)), host.memory_bytes()
    if needed > share * present:
        raise UserError(
            f"{name} takes {needed / 2**30:.1f} GiB decoded, more than "
            f"data.memory_share={share} of the {present / 2**30:.1f} GiB here: raise the "
            "share, or use a smaller set; reading from disk is not supported yet."
        )


def _decode(builder, split: str, shape, class_names: tuple[str, ...]) -> Source:
    count = builder.info.splits[split].num_examples
    images, labels = np.empty((count, *shape), np.uint8), np.empty(count, np.int32)
    done = 0
    try:
        batches = builder.as_dataset(split=split).map(
            lambda example: (example["image"], example["label"]), num_parallel_calls=-1
        )
        for image, label in batches.batch(1000).prefetch(2).as_numpy_iterator():
            images[done : done + len(label)] = image
            labels[done : done + len(label)] = label
            done += len(label)
    except (tf.errors.OpError, OSError, ValueError) as error:
        raise UserError(
            f"{builder.data_path} is damaged after {done} of {count} {split} examples "
            f"({one_line(error, 120)}): delete the folder and prepare it again."
        ) from error
    if done != count:
        raise UserError(
            f"{builder.data_path} holds {done} {split} examples, expected {count}: delete "
            "the folder and prepare it again."
        )
    return from_arrays(images, labels, class_names, f"{builder.name} {split}")
