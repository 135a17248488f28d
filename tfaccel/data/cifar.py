"""CIFAR-10 and CIFAR-100 as downloaded from their home page, in either format."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np

from tfaccel.data.source import ArraySource, from_arrays
from tfaccel.errors import UserError, one_line
from tfaccel.log import logger

# https://www.cs.toronto.edu/~kriz/cifar.html
_IMAGES = {"train": 50_000, "test": 10_000}
_PIXELS = 3 * 32 * 32
_TRAINING = tuple(f"data_batch_{i}" for i in range(1, 6))


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a dataset is laid out: as pickles, or as bytes.

    Args:
        folder: The folder's own name.
        train: Names of the training files.
        test: Name of the test file.
        names: Name of the file of class names.
        keys: In pickles: where labels and class names stand.
        label_bytes: In bytes: labels before each image, of which the last counts.
    """

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    keys: tuple[str, str] = ("", "")
    label_bytes: int = 0


_FORMS = {
    "cifar10": (
        _Form(
            "cifar-10-batches-py",
            _TRAINING,
            "test_batch",
            "batches.meta",
            keys=("labels", "label_names"),
        ),
        _Form(
            "cifar-10-batches-bin",
            tuple(f"{name}.bin" for name in _TRAINING),
            "test_batch.bin",
            "batches.meta.txt",
            label_bytes=1,
        ),
    ),
    "cifar100": (
        _Form(
            "cifar-100-python",
            ("train",),
            "test",
            "meta",
            keys=("fine_labels", "fine_label_names"),
        ),
        _Form(
            "cifar-100-binary",
            ("train.bin",),
            "test.bin",
            "fine_label_names.txt",
            label_bytes=2,
        ),
    ),
}


def find(name: str, dir: str | None) -> Path | None:
    """Returns the folder of CIFAR batches that `dir` is or holds, if any.

    Args:
        name: "cifar10" or "cifar100"; others have none.
        dir: A folder, such as one that holds cifar-10-batches-py.
    """
    found = _find(name, dir)
    return found and found[0]


def load(name: str, dir: str) -> dict[str, ArraySource]:
    """Returns the training and the test source of a folder that `find` finds.

    Raises:
        UserError: If files are missing, damaged or of another size.
    """
    folder, form = _find(name, dir)
    missing = [file for file in (*form.train, form.test) if not (folder / file).is_file()]
    if missing:
        present = sum(file not in missing for file in form.train)
        found = _IMAGES["train"] * present // len(form.train)
        raise UserError(
            f"{folder} lacks {', '.join(missing)}: found {found:,} training images in "
            f"{present} of {len(form.train)} files, expected {_IMAGES['train']:,}, and "
            f"{form.test} beside them. Unpack the archive again."
        )
    names = _class_names(folder, form)
    sources = {}
    for split, files in (("train", form.train), ("test", (form.test,))):
        images, labels = zip(*(_read(folder / file, form) for file in files), strict=True)
        images, labels = np.concatenate(images), np.concatenate(labels)
        if len(images) != _IMAGES[split]:
            logger.warning(
                "data: found %s %s images in %s, expected %s: a part of the set",
                f"{len(images):,}", split, folder, f"{_IMAGES[split]:,}",
            )  # fmt: skip
        sources[split] = from_arrays(images, labels, names, f"{folder.name} {split}")
    return sources


def _find(name: str, dir: str | None) -> tuple[Path, _Form] | None:
    for form in _FORMS.get(name, ()) if dir else ():
        for folder in (Path(dir) / form.folder, Path(dir)):
            named = folder.name == form.folder and folder.is_dir()
            if named or any((folder / file).is_file() for file in form.train):
                return folder, form
    return None


def _read(path: Path, form: _Form) -> tuple[np.ndarray, np.ndarray]:
    """Returns (images uint8 [n, 32, 32, 3], labels uint8 [n]) of a file."""
    if form.label_bytes:
        row, content = form.label_bytes + _PIXELS, path.read_bytes()
        if not content or len(content) % row:
            raise UserError(
                f"{path} has {len(content):,} bytes, expected a multiple of {row:,} (such as "
                f"10,000 images, {10_000 * row:,}): unpack the archive again."
            )
        rows = np.frombuffer(content, np.uint8).reshape(-1, row)
        labels, pixels = rows[:, form.label_bytes - 1], rows[:, form.label_bytes :]
    else:
        content = _unpickle(path)
        pixels, labels = np.asarray(content.get("data")), content.get(form.keys[0], ())
        if pixels.shape != (len(labels), _PIXELS):
            raise UserError(
                f"{path} holds data of shape {pixels.shape} and {len(labels)} "
                f"{form.keys[0]}, expected as many rows of {_PIXELS} as labels: unpack the "
                "archive again."
            )
        labels = np.asarray(labels)
    # The files hold all red values of an image, then all green, then all blue.
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _class_names(folder: Path, form: _Form) -> tuple[str, ...]:
    path = folder / form.names
    if not path.is_file():
        return ()
    if form.label_bytes:
        return tuple(path.read_text().split())
    names = _unpickle(path).get(form.keys[1]) or ()
    return tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names)


class _Arrays(pickle.Unpickler):
    """Unpickles arrays only: a pickle may otherwise run any code."""

    def find_class(self, module, name):
        allowed = {"_reconstruct", "ndarray", "dtype", "scalar", "encode", "_frombuffer"}
        if module.partition(".")[0] in ("numpy", "_codecs") and name in allowed:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it wants {module}.{name}, which no CIFAR file does")


def _unpickle(path: Path) -> dict:
    try:
        with path.open("rb") as file:
            content = _Arrays(file, encoding="bytes").load()
        return {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    except Exception as error:  # pickle raises many kinds for a damaged file.
        raise UserError(
            f"{path} ({path.stat().st_size:,} bytes) cannot be read: {one_line(error, 120)}: "
            "unpack the archive again."
        ) from error
