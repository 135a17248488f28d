"""Decodes a part of an image file to a given size, in the graph."""

from __future__ import annotations

import os

import numpy as np

from tfaccel.data.augment.boxes import random_resized_boxes
from tfaccel.data.image_index import BMP, JPEG, PILLOW, PNG, UNREADABLE
from tfaccel.lazy import tf

# The share of a side that evaluation shows: 224 of 256 pixels, as is usual with
# ImageNet since Krizhevsky et al., "ImageNet Classification" (2012).
CENTRE = 0.875
_JPEG_RATIOS = (1, 2, 4, 8)
# The exact transform, with which pixels equal those of Pillow; TensorFlow's default is
# a rougher one, which is hardly quicker.
_DCT = "INTEGER_ACCURATE"


def centre_boxes(heights, widths) -> tuple[tf.Tensor, ...]:
    """Returns the square in the middle of each image, an eighth smaller than the image.

    It is what resizing the shorter side to 8/7 of a size and cutting that size
    from the centre shows.

    Args:
        heights: int32 [n].
        widths: int32 [n].

    Returns:
        (top, left, height, width), each int32 [n], in pixels.
    """
    shorter = tf.cast(tf.minimum(heights, widths), tf.float32)
    side = tf.maximum(tf.cast(tf.round(shorter * CENTRE), tf.int32), 1)
    return (heights - side) // 2, (widths - side) // 2, side, side


def boxes(heights, widths, keys, crop_area: float) -> tf.Tensor:
    """Returns the part of each image that is shown, int32 [n, 4].

    Args:
        heights: int32 [n].
        widths: int32 [n].
        keys: uint32 [n] for training, whose crops lie anywhere; None for evaluation.
        crop_area: Smallest share of the area that a training crop shows; 1 for
            the middle in training, too.

    Returns:
        (top, left, height, width) of each image, in pixels.
    """
    if keys is None or crop_area == 1:
        return tf.stack(centre_boxes(heights, widths), axis=1)
    parts = random_resized_boxes(keys, heights, widths, scale=(crop_area, 1.0))
    return tf.stack(parts, axis=1)


def whole(path, kind, kinds: tuple[int, ...]) -> tf.Tensor:
    """Returns a file's pixels as they are, uint8 [height, width, 3].

    Args:
        path: string [].
        kind: How to decode it (see `image_index`), int32 [].
        kinds: The kinds there can be.
    """
    decoders = {
        JPEG: lambda: tf.image.decode_jpeg(tf.io.read_file(path), 3, dct_method=_DCT),
        PNG: lambda: tf.image.decode_png(tf.io.read_file(path), channels=3),
        BMP: lambda: tf.image.decode_bmp(tf.io.read_file(path), channels=3),
        PILLOW: lambda: _pillow(path),
    }
    return _by_kind(decoders, kind, kinds)


def part(path, kind, box, size: int, kinds: tuple[int, ...]) -> tf.Tensor:
    """Returns a part of an image in a given size, uint8 [size, size, 3].

    Of a JPEG only the part is decoded; where it is twice, four or eight times as
    large as needed, in a half, quarter or eighth of its size.

    Args:
        path: string [].
        kind: How to decode it (see `image_index`), int32 [].
        box: (top, left, height, width) in pixels of the file, int32 [4].
        size: Height and width of the result.
        kinds: The kinds there can be.
    """

    def cut_jpeg():
        return jpeg_part(tf.io.read_file(path), box, size)

    def cut_other():
        return image_part(whole(path, kind, others), box, size)

    others = [kind for kind in kinds if kind != JPEG]
    if not others:
        return cut_jpeg()
    if JPEG not in kinds:
        return cut_other()
    return tf.cond(tf.equal(kind, JPEG), cut_jpeg, cut_other)


def image_part(image, box, size: int) -> tf.Tensor:
    """Returns a part of a decoded image in a given size, uint8 [size, size, channels]."""
    # A filter as wide as the reduction, which a scaled JPEG has had already.
    cut = tf.image.crop_to_bounding_box(image, *tf.unstack(box))
    return _resized(cut, size, antialias=True)


def jpeg_part(content, box, size: int, channels: int = 3) -> tf.Tensor:
    """Returns a part of a JPEG in a given size, uint8 [size, size, channels].

    Args:
        content: The file's bytes, string [].
        box: (top, left, height, width) in pixels of the file, int32 [4].
        size: Height and width of the result.
        channels: 3, or 1 for grey.
    """

    def cut(ratio):
        # The window counts in pixels of the reduced image.
        top, left, height, width = tf.unstack(box // ratio)
        window = tf.stack([top, left, tf.maximum(height, 1), tf.maximum(width, 1)])
        return tf.raw_ops.DecodeAndCropJpeg(
            contents=content,
            crop_window=window,
            channels=channels,
            ratio=ratio,
            dct_method=_DCT,
        )

    fitting = tf.minimum(box[2], box[3]) // size
    choice = sum(tf.cast(fitting >= ratio, tf.int32) for ratio in _JPEG_RATIOS[1:])
    cuts = [lambda ratio=ratio: cut(ratio) for ratio in _JPEG_RATIOS]
    return _resized(tf.switch_case(choice, cuts), size)


def _resized(image, size: int, antialias: bool = False) -> tf.Tensor:
    resized = tf.image.resize(image, [size, size], antialias=antialias)
    return tf.saturate_cast(tf.round(resized), tf.uint8)


def _by_kind(decoders: dict, kind, kinds: tuple[int, ...]) -> tf.Tensor:
    """Runs the decoder of a kind; only those that are needed are in the graph."""
    # A file that nobody can read is Pillow's to refuse.
    reader = [PILLOW if k == UNREADABLE else k for k in range(PILLOW + 1)]
    used = sorted({reader[k] for k in kinds})
    if len(used) == 1:
        return decoders[used[0]]()
    place = [used.index(k) if k in used else 0 for k in reader]
    return tf.switch_case(tf.gather(place, kind), [decoders[k] for k in used])


def _pillow(path) -> tf.Tensor:
    """For the formats that TensorFlow cannot read; holds Python's lock."""
    image = tf.numpy_function(_read_with_pillow, [path], tf.uint8)
    image.set_shape([None, None, 3])
    return image


def _read_with_pillow(path) -> np.ndarray:
    from PIL import Image

    # bytes in a graph, an array of them outside.
    with Image.open(os.fsdecode(np.asarray(path).item())) as image:
        return np.asarray(image.convert("RGB"))
