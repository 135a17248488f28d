"""Pillow is the reference, on photographs."""

import colorsys

import numpy as np
import pytest
import tensorflow as tf
import tiny
from PIL import Image, ImageEnhance, ImageOps

from tfaccel.data.augment import operations

COUNT, SIZE = 24, 40
RANDOM = np.random.default_rng(1)
FACTORS = RANDOM.uniform(0, 2, COUNT)
PAIRS = RANDOM.uniform(-1, 1, (COUNT, 2))
MOVES = 30 * PAIRS
DEGREES = RANDOM.uniform(-180, 180, COUNT)
BITS = RANDOM.integers(1, 9, COUNT).astype(np.int32)
THRESHOLDS = RANDOM.integers(0, 257, COUNT).astype(np.int32)
ADDITIONS = RANDOM.integers(0, 128, COUNT).astype(np.int32)


def transformed(image, *matrix):
    grey = (operations.GREY,) * len(image.getbands())
    fill = grey if len(grey) > 1 else grey[0]
    bilinear = Image.Resampling.BILINEAR
    return image.transform(image.size, Image.Transform.AFFINE, matrix, bilinear, fillcolor=fill)


def rotated(image, degrees):
    grey = (operations.GREY,) * len(image.getbands())
    fill = grey if len(grey) > 1 else grey[0]
    return image.rotate(degrees, Image.Resampling.BILINEAR, fillcolor=fill)


def added(image, number):
    return image.point(lambda value: min(value + number, 255))


# Ours, Pillow's, and the largest difference. Where it is 1, Pillow cuts fractions off
# after sums in floating point, and ours are in whole numbers: bilinear sampling rounds
# to the nearest instead, the others differ where a result is whole but for Pillow's
# rounding error.
CASES = {
    "shear": (
        lambda x: operations.affine(x, operations.shear(*PAIRS.T)),
        lambda i, k: transformed(i, 1, PAIRS[k, 0], 0, PAIRS[k, 1], 1, 0),
        1,
    ),
    "translate": (
        lambda x: operations.affine(x, operations.translate(*MOVES.T)),
        lambda i, k: transformed(i, 1, 0, -MOVES[k, 0], 0, 1, -MOVES[k, 1]),
        1,
    ),
    "rotate": (
        lambda x: operations.affine(x, operations.rotate(DEGREES, SIZE, SIZE)),
        lambda i, k: rotated(i, DEGREES[k]),
        1,
    ),
    "brightness": (
        lambda x: operations.brightness(x, FACTORS),
        lambda i, k: ImageEnhance.Brightness(i).enhance(FACTORS[k]),
        1,
    ),
    "contrast": (
        lambda x: operations.contrast(x, FACTORS),
        lambda i, k: ImageEnhance.Contrast(i).enhance(FACTORS[k]),
        1,
    ),
    "color": (
        lambda x: operations.color(x, FACTORS),
        lambda i, k: ImageEnhance.Color(i).enhance(FACTORS[k]),
        1,
    ),
    "sharpness": (
        lambda x: operations.sharpness(x, FACTORS),
        lambda i, k: ImageEnhance.Sharpness(i).enhance(FACTORS[k]),
        1,
    ),
    "posterize": (
        lambda x: operations.posterize(x, BITS),
        lambda i, k: ImageOps.posterize(i, int(BITS[k])),
        0,
    ),
    "solarize": (
        lambda x: operations.solarize(x, THRESHOLDS),
        lambda i, k: ImageOps.solarize(i, int(THRESHOLDS[k])),
        0,
    ),
    "solarize after adding": (
        lambda x: operations.solarize(x, THRESHOLDS, ADDITIONS),
        lambda i, k: ImageOps.solarize(added(i, ADDITIONS[k]), int(THRESHOLDS[k])),
        0,
    ),
    "autocontrast": (operations.autocontrast, lambda i, k: ImageOps.autocontrast(i), 1),
    "equalize": (operations.equalize, lambda i, k: ImageOps.equalize(i), 0),
}


@pytest.fixture(scope="module")
def photos():
    images = tiny.photos(COUNT, SIZE)
    images[0] = 77  # one colour
    images[1] //= 64  # four values
    images[2, ..., 1] = 200  # a channel without contrast
    return images


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_equals_pillow(name, channels, photos):
    ours, theirs, tolerance = CASES[name]
    images = photos[..., :channels]
    pictures = [Image.fromarray(i[..., 0] if channels == 1 else i) for i in images]
    expected = np.stack([np.asarray(theirs(p, k)) for k, p in enumerate(pictures)])
    got = ours(tf.constant(images))
    assert got.dtype == tf.uint8
    difference = got.numpy().astype(int) - expected.reshape(got.shape)
    assert np.abs(difference).max() <= tolerance


@pytest.mark.parametrize("name", ["brightness", "contrast", "color", "sharpness"])
def test_factor_1_changes_nothing(name, photos):
    got = getattr(operations, name)(tf.constant(photos), np.ones(COUNT))
    np.testing.assert_array_equal(got, photos)


def test_hue_equals_the_colour_circle_of_the_standard_library(photos):
    images, turns = photos[:6, :5, :5], RANDOM.uniform(-0.5, 0.5, 6)

    def turned(pixel, turn):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
        return np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) * 255

    expected = [
        [[turned(pixel, turn) for pixel in row] for row in image]
        for image, turn in zip(images, turns, strict=True)
    ]
    got = operations.hue(tf.constant(images), turns).numpy()
    # Half a step of rounding, and a hue to one part in 24,576: 255 * 6 / 24,576 / 2.
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.54)
