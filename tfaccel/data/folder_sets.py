"""Class folders of images as training and test sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfaccel.data import class_folders, image_index
from tfaccel.data.files import FileSource
from tfaccel.data.per_image import BadImages, OnBadImage
from tfaccel.errors import UserError, did_you_mean
from tfaccel.log import logger

_SIZE = 224


def load(
    folder: Path, *, image_size: int | None, crop_area: float, on_bad_image: OnBadImage
) -> dict[str, FileSource]:
    """Returns the sources of a tree of class folders: "train", "test", "validation" or "all".

    Images that all have one size, which is `image_size` or that is None, come
    whole. Others are cut: anywhere in training, in the middle in evaluation.

    Args:
        folder: See `class_folders.find`.
        image_size: Height and width to bring images to; None for their own if
            they have one, else 224.
        crop_area: Smallest share of an image's area that a training crop shows.
        on_bad_image: What becomes of unreadable files.

    Raises:
        UserError: If the tree is not as expected, or files cannot be read.
    """
    parts = class_folders.find(folder)
    names = class_folders.class_names(parts.get("train", folder))
    listed = {split: _listed(part, names) for split, part in parts.items()}
    training = next(iter(listed.values()))
    names = _without_empty(names, training[1], folder)
    index = _joined(folder, parts, listed)
    size = _common_size(index, image_size)
    sources, start, bad = {}, 0, BadImages()
    for split, (found, _) in listed.items():
        rows = np.arange(start, start + len(found))
        start += len(found)
        title = f"{folder.name} {split}" if split != "all" else folder.name
        sources[split] = FileSource(
            title, names, rows, on_bad_image, bad, files=index, size=size, crop_area=crop_area
        )
        sources[split].check_headers()
    return sources


def _listed(part: Path, names: list[str]) -> tuple[list, np.ndarray]:
    """Returns the images of a split with their labels."""
    found, others = class_folders.images(part)
    numbers = {name: number for number, name in enumerate(names)}
    loose = [path for path, *_ in found if "/" not in path]
    found = [file for file in found if "/" in file[0]]
    if loose or others:
        logger.info(
            "data: %s: %d files left aside that are no images or lie in no class folder",
            part, len(loose) + others,
        )  # fmt: skip
    if not found:
        raise UserError(
            f"{part} holds no images in its class folders, expected files that end in "
            f"{', '.join(class_folders.ENDINGS)}."
        )
    unknown = {path.partition("/")[0] for path, *_ in found} - set(numbers)
    if unknown:
        name = min(unknown)
        raise UserError(
            f"{part} holds images of the class {name!r}, of which there are none to train "
            f"on. {did_you_mean(name, names)}".strip()
        )
    return found, np.array([numbers[path.partition("/")[0]] for path, *_ in found], np.int32)


def _without_empty(names: list[str], labels: np.ndarray, folder: Path) -> tuple[str, ...]:
    counts = np.bincount(labels, minlength=len(names))
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if empty:
        raise UserError(
            f"{folder} has no images to train on in the class folder(s) "
            f"{', '.join(map(repr, empty[:5]))}: fill or remove them."
        )
    return tuple(names)


def _joined(folder: Path, parts: dict, listed: dict) -> image_index.ImageIndex:
    """Returns one index of all splits, so that one cache file serves them."""
    found, labels = [], []
    for split, (images, split_labels) in listed.items():
        prefix = "" if parts[split] == folder else f"{parts[split].name}/"
        found += [(prefix + path, *stamp) for path, *stamp in images]
        labels.append(split_labels)
    return image_index.build(folder, found, np.concatenate(labels))


def _common_size(index: image_index.ImageIndex, wanted: int | None) -> int | None:
    """Returns the size that images are brought to, or None if they come whole."""
    sizes = np.stack([index.heights, index.widths], axis=1)
    sizes = np.unique(sizes[index.kinds != image_index.UNREADABLE], axis=0)
    if len(sizes) == 1 and (wanted is None or sizes[0].tolist() == [wanted, wanted]):
        return None
    if wanted is None:
        logger.info("data: images vary in size: brought to %d pixels (data.image_size)", _SIZE)
    return wanted or _SIZE
