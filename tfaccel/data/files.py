"""A source of image files, decoded as they are needed."""

from __future__ import annotations

import dataclasses
import os
from functools import cached_property

import numpy as np

from tfaccel.data import decode
from tfaccel.data.image_index import UNREADABLE, ImageIndex, why_unreadable
from tfaccel.data.per_image import PerImageSource
from tfaccel.errors import UserError
from tfaccel.lazy import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(PerImageSource):
    """Image files of any size, decoded to one size in the graph.

    Args:
        files: The index of all files.
        size: Height and width that images are brought to; None if all have one
            size and are taken whole.
        crop_area: Smallest share of an image's area that a training crop shows.
    """

    files: ImageIndex
    size: int | None
    crop_area: float = 0.08

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, 3) of every image as it is fetched."""
        if self.size:
            return self.size, self.size, 3
        first = int(np.argmax(self.files.kinds != UNREADABLE))
        return int(self.files.heights[first]), int(self.files.widths[first]), 3

    def class_counts(self) -> np.ndarray:
        """Returns how many examples each class has, int64 [classes]."""
        return np.bincount(self.files.labels[self.rows], minlength=self.num_classes)

    def details(self, rows, keys) -> dict[str, tf.Tensor]:
        """Returns path, format and label of some files, and the part to cut out."""
        found = {name: tf.gather(values, rows) for name, values in self.files.tensors.items()}
        folder = os.fspath(self.files.folder)
        detail = {"path": tf.strings.join([folder, "/", found["paths"]])}
        detail |= {"kind": found["kinds"], "label": found["labels"]}
        if self.size:
            detail["box"] = decode.boxes(
                found["heights"], found["widths"], keys, self.crop_area
            )
        return detail

    def read(self, detail) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (image, label) of one file."""
        path, kind = detail["path"], detail["kind"]
        if self.size:
            image = decode.part(path, kind, detail["box"], self.size, self._kinds)
        else:
            image = decode.whole(path, kind, self._kinds)
        return image, detail["label"]

    def title(self, row: int) -> str:
        """Returns a file's path."""
        return str(self.files.path(row))

    def reason(self, row: int) -> str:
        """Returns what is wrong with a file."""
        return why_unreadable(self.files.path(row))

    def check_headers(self) -> None:
        """Names the files whose first bytes show already that they cannot be read.

        Raises:
            UserError: If there are any and they may not be skipped.
        """
        bad = self.rows[self.files.kinds[self.rows] == UNREADABLE]
        if len(bad) and self.on_bad_image == "fail":
            raise UserError(self.unreadable(bad[0], len(bad) - 1))
        for row in bad:
            self.bad.note(self.title(row), self.reason(row))

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        return tuple(np.unique(self.files.kinds[self.rows]).tolist())
