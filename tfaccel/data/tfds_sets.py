"""Image classification sets of TensorFlow Datasets, decoded once into memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tfaccel import host
from tfaccel.data import array_records
from tfaccel.data.per_image import BadImages, OnBadImage
from tfaccel.data.source import Source, from_arrays, read_errors
from tfaccel.errors import UserError, did_you_mean, one_line
from tfaccel.lazy import tf
from tfaccel.log import logger

# Height and width that images of varying size are brought to.
_SIZE = 224


def check_name(name: str, dir: str | None, others: tuple[str, ...] = ()) -> None:
    """Refuses a name that is no TFDS dataset; needs neither network nor TensorFlow.

    Args:
        name: Such as "cifar10" or "cifar10:3.*.*".
        dir: TFDS's data_dir, whose own sets are known, too.
        others: Names that are no TFDS sets but would have been fine.
    """
    import tensorflow_datasets as tfds

    base = re.split("[:/]", name)[0]
    known = tfds.list_builders(with_community_datasets=False)
    if base not in known and not (dir and (Path(dir) / base).is_dir()):
        raise UserError(
            f"received data.name={name}, which is neither {', '.join(others)} nor a "
            f"TFDS dataset. {did_you_mean(base, [*others, *known])}".strip()
        )


def load(
    name: str,
    dir: str | None,
    memory_share: float,
    image_size: int | None = None,
    crop_area: float = 0.08,
    on_bad_image: OnBadImage = "fail",
) -> dict[str, Source]:
    """Returns the "train" and, if there are, "test" and "validation" source.

    Sets in TFRecord files, which have no random access, are decoded into memory;
    those in array_record files are read as needed.

    Args:
        name: A TFDS image classification set.
        dir: TFDS's data_dir; its default if None.
        memory_share: Share of the memory that decoded images may take.
        image_size: Height and width to bring images of varying size to.
        crop_area: Smallest share of such an image that a training crop shows.
        on_bad_image: What becomes of unreadable images in array_record files.

    Raises:
        UserError: If the set is absent, damaged, too large or of another kind.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=dir)
    except Exception as error:
        raise UserError(f"TFDS cannot open {name}: {one_line(error)}") from error
    _prepare(builder)
    features, splits = dict(builder.info.features.items()), builder.info.splits
    image = features.get("image")
    shape = getattr(image, "shape", None)
    label = features.get("label")
    if shape is None or not isinstance(label, tfds.features.ClassLabel):
        raise UserError(
            f"{name} has the features {', '.join(features)}, expected an image and a "
            "class label: it is no image classification set."
        )
    if image.dtype != np.uint8:
        raise UserError(
            f"{name} has images of dtype {np.dtype(image.dtype).name}, expected uint8: "
            "convert them and use data.name=npz."
        )
    if "train" not in splits:
        raise UserError(f"{name} has the splits {', '.join(splits)}, expected 'train'.")
    wanted = [split for split in ("train", "test", "validation") if split in splits]
    if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
        size = image_size or (_SIZE if None in shape else None)
        options = {"on_bad_image": on_bad_image, "bad": BadImages()}
        found = {
            split: array_records.load(builder, split, size, crop_area, **options)
            for split in wanted
        }
        return {split: source for split, source in found.items() if _labelled(source)}
    if None in shape or image_size:
        kind = "images of varying size" if None in shape else f"images of {shape}"
        raise UserError(
            f"{name} has {kind} in files without random access, from which they cannot be "
            f"brought to another size. Prepare it again with tfds build {builder.name} "
            "--file_format=array_record."
        )
    # A validation set beside a test set stays unread, as ever: it is of no use here.
    wanted = wanted[:2]
    _check_memory(name, shape, sum(splits[s].num_examples for s in wanted), memory_share)
    return {split: _decode(builder, split, shape, tuple(label.names)) for split in wanted}


def _labelled(source: array_records.RecordSource) -> bool:
    """Some test sets, such as ImageNet's, have the label -1 throughout."""
    with read_errors():
        _, labels = source.fetch(tf.constant([0], tf.int64))
    if int(labels[0]) < 0:
        name, _, split = source.name.rpartition(" ")
        logger.info("data: the %s split of %s has no labels: left out", split, name)
    return int(labels[0]) >= 0


def _prepare(builder) -> None:
    if builder.is_prepared():
        return
    logger.info("data: %s is not in %s yet; fetching it", builder.name, builder.data_dir)
    try:
        # TFDS itself would go on trying for minutes.
        if not builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
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
            f"share, or prepare it for reading from disk: tfds build {name} "
            "--file_format=array_record."
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
            f"({_cause(error)}): delete the folder and prepare it again."
        ) from error
    if done != count:
        raise UserError(
            f"{builder.data_path} holds {done} {split} examples, expected {count}: delete "
            "the folder and prepare it again."
        )
    return from_arrays(images, labels, class_names, f"{builder.name} {split}")


def _cause(error: Exception) -> str:
    """TensorFlow's messages begin with the node that failed."""
    text = getattr(error, "message", None) or str(error)
    return one_line(re.sub(r"\{\{.*?\}\}", "", text), 160)
