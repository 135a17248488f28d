import numpy as np
import pytest
import tensorflow as tf
import tiny
from PIL import Image

from tfaccel import randomness
from tfaccel.data.augment import boxes, resample, resized_crop
from tfaccel.errors import UserError


def keys(count):
    return randomness.mix(0, tf.range(count))


def test_is_the_same_wherever_it_runs():
    images = tiny.photos(12, 12)
    cut = tiny.assert_same_wherever_it_runs(
        resized_crop.build(smallest_area=0.08), images, keys(12)
    )
    assert (cut != images).any(axis=(1, 2, 3)).all()


def test_enlarges_as_pillow_does():
    images = tiny.photos(20, 24)
    parts = boxes.random_resized_boxes(keys(20), 24, 24)
    got = resample.resize_part(tf.constant(images), *parts).numpy()
    for image, result, top, left, height, width in zip(
        images, got, *(p.numpy() for p in parts), strict=True
    ):
        part = Image.fromarray(image[top : top + height, left : left + width])
        expected = part.resize((24, 24), Image.Resampling.BILINEAR)
        # Pillow rounds after each of the two directions, ours once.
        difference = result.astype(int) - np.asarray(expected)
        assert np.abs(difference).max() <= 1


def test_whole_image_is_left_alone():
    images = tf.constant(tiny.photos(4, 10))
    whole = tf.zeros([4], tf.int32), tf.zeros([4], tf.int32), tf.fill([4], 10), tf.fill([4], 10)
    np.testing.assert_array_equal(resample.resize_part(images, *whole), images)


@pytest.mark.parametrize("field", ["smallest_area", "narrowest"])
def test_parts_without_area_are_refused(field):
    with pytest.raises(UserError, match=rf"resized_crop\.{field}=0\.0, expected more than 0"):
        resized_crop.build(**{field: 0.0})
