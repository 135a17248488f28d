"""Class folders: how a tree of images is nested, and what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

from tfaccel.errors import UserError

# What Pillow or TensorFlow read; by name only, the content decides how.
ENDINGS = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_SPLITS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}


def find(folder: Path) -> dict[str, Path]:
    """Returns the folders that hold class folders, by split; reads names only.

    Args:
        folder: Holds train/ and perhaps test/ and val/, each with one folder a
            class; or the class folders themselves.

    Returns:
        {"train": ..., "test": ..., "validation": ...} as far as they exist, or
        {"all": folder}.

    Raises:
        UserError: If it is no folder, empty, nested in another way, has but one
            class, or one class in two spellings.
    """
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise UserError(
            f"received data.dir={folder}, which is {what}, expected a folder with one folder "
            "of images for each class."
        )
    found = _split_folders(folder)
    if found and "train" not in found:
        raise UserError(
            f"{folder} holds {_names(found.values())} but no train/: expected train/ and "
            "test/ (or val/), each with one folder for each class."
        )
    parts = found or {"all": folder}
    for split, part in parts.items():
        # A test set may lack classes; what is trained on must not.
        _check_classes(part, several=split in ("all", "train"))
    return parts


def class_names(folder: Path) -> list[str]:
    """Returns the names of the class folders in a folder, sorted."""
    return sorted(path.name for path in _folders(folder))


def images(folder: Path) -> tuple[list[tuple[str, int, int]], int]:
    """Returns the images in a folder and all folders below it.

    Returns:
        ([(path relative to the folder, bytes, time of change in ns)], sorted by
        path; how many other files there are).
    """
    found, others = [], 0
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        with os.scandir(folder / inside) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                # Links to folders are not followed here: they may lead round in circles.
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{inside}{entry.name}/")
                elif entry.name.lower().endswith(ENDINGS):
                    status = entry.stat()
                    name = f"{inside}{entry.name}"
                    found.append((name, status.st_size, status.st_mtime_ns))
                else:
                    others += 1
    return sorted(found), others


def _split_folders(folder: Path) -> dict[str, Path]:
    folders = {path.name.lower(): path for path in _folders(folder)}
    return {
        split: folders[name]
        for split, names in _SPLITS.items()
        for name in names
        if name in folders
    }


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(e.path) for e in entries if e.is_dir() and not e.name.startswith(".")]


def _check_classes(folder: Path, several: bool) -> None:
    classes = _folders(folder)
    if not classes:
        loose = sum(p.name.lower().endswith(ENDINGS) for p in folder.iterdir())
        holds = f"{loose} images but no folders" if loose else "no images"
        raise UserError(
            f"{folder} holds {holds}, expected one folder for each class with its images in it."
        )
    by_name = {}
    for path in classes:
        other = by_name.setdefault(path.name.strip().casefold(), path)
        if other is not path:
            first, second = sorted((other.name, path.name))
            raise UserError(
                f"{folder} holds the class folders {first!r} and {second!r}, two spellings of "
                "one class: move the images of one into the other, or rename it."
            )
    nested = next((p for p in classes if "train" in _split_folders(p)), None)
    if nested is not None and (len(classes) == 1 or all(map(_split_folders, classes))):
        if len(classes) == 1:
            raise UserError(_too_high(folder, nested))
        raise UserError(
            f"{folder} is nested as class/split ({classes[0].name}/train), expected "
            "split/class: train/ and test/ with one folder for each class in them."
        )
    if several and len(classes) == 1:
        (only,) = classes
        if len(_folders(only)) > 1:
            raise UserError(_too_high(folder, only))
        raise UserError(
            f"{folder} holds one class ({only.name!r}), expected at least two folders, "
            "one for each class."
        )


def _too_high(folder: Path, inner: Path) -> str:
    return (
        f"{folder} holds only the folder {inner.name!r}, in which the class folders lie: "
        f"use --config.data.dir={inner}."
    )


def _names(paths) -> str:
    return " and ".join(f"{path.name}/" for path in paths)
