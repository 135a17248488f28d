"""TFDS sets in array_record files: random access, so they need not fit in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tfaccel.data import decode
from tfaccel.data.per_image import PerImageSource
from tfaccel.errors import UserError, one_line
from tfaccel.lazy import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSource(PerImageSource):
    """A split of a prepared TFDS set whose files are array_records.

    Args:
        records: What reads serialised examples by number, `__getitems__(numbers)`.
        features: The set's `FeaturesDict`, with an image and a label.
        size: Height and width that images are brought to; None if all have one
            size and are taken whole.
        crop_area: Smallest share of an image's area that a training crop shows.
    """

    records: Any
    features: Any
    size: int | None
    crop_area: float = 0.08

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image as it is fetched."""
        height, width, channels = self.features["image"].shape
        return (self.size, self.size, channels) if self.size else (height, width, channels)

    def details(self, rows, keys) -> dict[str, tf.Tensor]:
        """Returns the serialised examples; many are read at once."""
        serialised = tf.numpy_function(self._records, [rows], tf.string)
        serialised.set_shape(rows.shape)
        return {"example": serialised, **({} if keys is None else {"key": keys})}

    def read(self, detail) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (image, label) of one example."""
        import tensorflow_datasets as tfds

        if not self.size:
            example = self.features.deserialize_example(detail["example"])
            return example["image"], tf.cast(example["label"], tf.int32)
        encoded = {"image": tfds.decode.SkipDecoding()}
        example = self.features.deserialize_example(detail["example"], decoders=encoded)
        keys = detail["key"][None] if "key" in detail else None
        image = self._cut(example["image"], keys)
        return image, tf.cast(example["label"], tf.int32)

    def title(self, row: int) -> str:
        """Returns the example's place."""
        return f"example {row} of {self.name}"

    def _cut(self, content, keys):
        channels = self.image_shape[2]

        def box_of(shape):
            return decode.boxes(shape[None, 0], shape[None, 1], keys, self.crop_area)[0]

        def cut_jpeg():
            box = box_of(tf.io.extract_jpeg_shape(content))
            return decode.jpeg_part(content, box, self.size, channels)

        def cut_other():
            image = tf.io.decode_image(content, channels, expand_animations=False)
            return decode.image_part(image, box_of(tf.shape(image)), self.size)

        return tf.cond(tf.io.is_jpeg(content), cut_jpeg, cut_other)

    def _records(self, rows: np.ndarray) -> np.ndarray:
        try:
            return np.array(self.records.__getitems__(rows.tolist()), object)
        except Exception as error:  # The reader raises many kinds for a damaged file.
            raise UserError(
                f"{self.name} cannot be read: {one_line(error, 160)}: prepare the set again."
            ) from error


def load(builder, split: str, size: int | None, crop_area: float, **options) -> RecordSource:
    """Returns the source of a split of a prepared TFDS set.

    Args:
        builder: A TFDS builder whose files are array_records.
        split: Such as "train".
        size: Height and width to bring images to; None for their own.
        crop_area: See `RecordSource`.
        **options: `on_bad_image` and `bad`; see `PerImageSource`.

    Raises:
        UserError: If the files cannot be opened.
    """
    try:
        data = builder.as_data_source(split=split)
        count = len(data)
    except ImportError as error:
        raise UserError(
            f"{builder.name} is prepared as array_record, which takes another package to "
            "read: pip install 'tfaccel[array_record]'."
        ) from error
    except Exception as error:
        raise UserError(f"{builder.data_path} cannot be read: {one_line(error)}") from error
    names = tuple(builder.info.features["label"].names)
    return RecordSource(
        f"{builder.name} {split}", names, np.arange(count), records=data.data_source,
        features=builder.info.features, size=size, crop_area=crop_area, **options,
    )  # fmt: skip
