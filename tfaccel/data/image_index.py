"""An index of image files: format and size of each, read once and cached."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
from functools import cached_property
from pathlib import Path

import numpy as np

from tfaccel.errors import one_line
from tfaccel.lazy import tf
from tfaccel.log import logger

# How a file is decoded: by TensorFlow as JPEG, PNG or BMP, or by Pillow.
UNREADABLE, JPEG, PNG, BMP, PILLOW = range(5)
_VERSION = 1
_THREADS = 16


@dataclasses.dataclass(frozen=True)
class ImageIndex:
    """Image files and what their first bytes say.

    Args:
        folder: What the paths are relative to.
        paths: Bytes [n].
        kinds: How each file is decoded, uint8 [n].
        heights: Pixels, int32 [n]; 1 for unreadable files.
        widths: Pixels, int32 [n]; 1 for unreadable files.
        labels: int32 [n].
    """

    folder: Path
    paths: np.ndarray
    kinds: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, row: int) -> Path:
        """Returns the path of one file."""
        return self.folder / os.fsdecode(bytes(self.paths[row]))

    @cached_property
    def tensors(self) -> dict[str, tf.Tensor]:
        """Everything but the folder, as tensors on the host."""
        names = ("paths", "kinds", "heights", "widths", "labels")
        with tf.device("CPU:0"), tf.init_scope():
            arrays = {name: getattr(self, name) for name in names}
            arrays["kinds"] = arrays["kinds"].astype(np.int32)
            return {name: tf.convert_to_tensor(array) for name, array in arrays.items()}


def build(folder: Path, files: list[tuple[str, int, int]], labels: np.ndarray) -> ImageIndex:
    """Returns the index of some files; only new and changed ones are opened.

    What was found is kept in the user's cache folder ($XDG_CACHE_HOME/tfaccel, by
    default ~/.cache/tfaccel), one file for each indexed folder; a file whose size
    or time of change differs is read again.

    Args:
        folder: What the paths are relative to.
        files: (path, bytes, time of change in ns), as `class_folders.images`
            returns them.
        labels: int32 [n].
    """
    paths = np.array([os.fsencode(path) for path, _, _ in files])
    stamps = np.array([stamp for _, *stamp in files], np.int64)
    cache = cache_file(folder)
    headers = _headers(folder, paths, stamps, _read_cache(cache))
    _write_cache(cache, paths=paths, stamps=stamps, headers=headers)
    return ImageIndex(folder, paths, headers[:, 0].astype(np.uint8), *headers[:, 1:].T, labels)


def cache_file(folder: Path) -> Path:
    """Returns where the index of a folder is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return Path(base).expanduser() / "tfaccel" / f"{folder.name or 'root'}-{key}.npz"


def read_header(path: Path) -> tuple[int, int, int]:
    """Returns (how to decode it, height, width) of an image file.

    Pixels are not decoded, so a damaged body is not seen here.
    """
    from PIL import Image

    try:
        with path.open("rb") as file, Image.open(file) as image:
            width, height = image.size
            kind = {"JPEG": JPEG, "MPO": JPEG, "PNG": PNG}.get(image.format, PILLOW)
            if image.format == "BMP" and _bits_per_pixel(file) == 24:
                kind = BMP  # TensorFlow takes other BMPs for grey, or with alpha.
            return kind, height, width
    except Exception:  # Pillow raises many kinds for a damaged file.
        return UNREADABLE, 1, 1


def why_unreadable(path: Path) -> str:
    """Returns what is wrong with an image file, in a few words."""
    from PIL import Image

    try:
        if path.stat().st_size == 0:
            return "it is empty"
        with Image.open(path) as image:
            image.load()
        return "its content is damaged"
    except FileNotFoundError:
        return "it is gone"
    except Exception as error:
        # Pillow repeats the path, which the caller names already.
        return one_line(error, 120).replace(f" '{path}'", "").rstrip(".")


def _bits_per_pixel(file) -> int:
    file.seek(28)
    return int.from_bytes(file.read(2), "little")


def _headers(folder, paths, stamps, cached) -> np.ndarray:
    """Returns (kind, height, width) of each file, int32 [n, 3]."""
    headers = np.zeros((len(paths), 3), np.int32)
    new = np.ones(len(paths), bool)
    if cached is not None:
        known, rows = _rows_of(paths, cached["paths"])
        known &= (cached["stamps"][rows] == stamps).all(axis=1)
        headers[known] = cached["headers"][rows[known]]
        new = ~known
    (fresh,) = np.nonzero(new)
    if len(fresh) > 10_000:
        logger.info("data: reading the headers of %s images, once", f"{len(fresh):,}")
    files = [folder / os.fsdecode(bytes(paths[row])) for row in fresh]
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for row, header in zip(fresh, pool.map(read_header, files), strict=True):
            headers[row] = header
    return headers


def _rows_of(paths: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (whether each path is among the known, bool [n]; where, int64 [n])."""
    order = np.argsort(known)
    places = np.searchsorted(known, paths, sorter=order)
    rows = order[np.minimum(places, len(known) - 1)]
    return known[rows] == paths, rows


def _read_cache(path: Path) -> dict[str, np.ndarray] | None:
    try:
        with np.load(path) as content:
            arrays = dict(content)
        whole = len(arrays["paths"]) == len(arrays["stamps"]) == len(arrays["headers"]) > 0
        return arrays if whole and arrays["version"] == _VERSION else None
    except Exception:  # Absent, of another version or damaged: it is made anew.
        return None


def _write_cache(path: Path, **arrays) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez(file, version=_VERSION, **arrays)
        partial.replace(path)
    except OSError as error:
        logger.warning(
            "data: the index cannot be kept in %s (%s): it is made anew each time",
            path.parent, one_line(error),
        )  # fmt: skip
