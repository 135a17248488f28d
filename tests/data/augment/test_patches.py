"""Cutout and random erasing, which paint over; colour jitter, which paints all."""

import numpy as np
import pytest
import tensorflow as tf
import tiny
from scipy import stats

from tfaccel import randomness
from tfaccel.data.augment import color_jitter, cutout, erasing
from tfaccel.errors import UserError


def keys(count):
    return randomness.mix(0, tf.range(count))


@pytest.mark.parametrize(
    "augment",
    [
        cutout.build(size=5),
        erasing.build(probability=0.7),
        erasing.build(probability=1.0, fill="noise"),
        color_jitter.build(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    ],
    ids=["cutout", "erasing", "noise", "jitter"],
)
def test_is_the_same_wherever_it_runs(augment):
    images = tiny.photos(12, 12)
    assert (tiny.assert_same_wherever_it_runs(augment, images, keys(12)) != images).any()


@pytest.mark.parametrize(("size", "offset"), [(4, 2), (5, 2)])
def test_cutout_is_a_square_about_any_pixel(size, offset):
    images = tf.zeros([10_000, 9, 9, 1], tf.uint8)
    painted = cutout.build(size=size)(images, keys(10_000)).numpy()[..., 0]
    assert set(np.unique(painted)) == {0, 128}
    rows, columns = (painted.any(axis=axis) for axis in (2, 1))
    np.testing.assert_array_equal(painted > 0, rows[:, :, None] & columns[:, None, :])
    # Squares are whole where the centre is far enough from the edges.
    assert rows.sum(axis=1).max() == columns.sum(axis=1).max() == size
    ends = np.stack([9 - rows[:, ::-1].argmax(axis=1), 9 - columns[:, ::-1].argmax(axis=1)])
    centres = np.where(ends < 9, ends - size + offset, 8)
    inner = (ends < 9).all(axis=0)
    counts = np.unique(centres[:, inner], axis=1, return_counts=True)[1]
    assert stats.chisquare(counts).pvalue > 0.001


def test_erasing_hits_its_share_of_the_images():
    images = tf.zeros([10_000, 12, 12, 1], tf.uint8)
    painted = erasing.build(probability=0.3)(images, keys(10_000)).numpy()
    hit = painted.any(axis=(1, 2, 3))
    assert stats.binomtest(int(hit.sum()), 10_000, 0.3).pvalue > 0.001
    shares = (painted[hit] > 0).mean(axis=(1, 2, 3))
    # Sides are rounded to whole pixels of twelve.
    assert 0.01 <= shares.min() < 0.05
    assert 0.25 < shares.max() <= 0.40


@pytest.mark.parametrize(("fill", "value"), [("grey", 128), ("black", 0)])
def test_erased_pixels_have_one_value(fill, value):
    images = tf.fill([50, 8, 8, 3], np.uint8(77))
    painted = erasing.build(probability=1.0, fill=fill)(images, keys(50)).numpy()
    assert set(np.unique(painted)) == {77, value}


def test_noise_is_uniform():
    noise = erasing.paint(tf.zeros([50, 16, 16, 3], tf.uint8), keys(50), "noise").numpy()
    assert noise.shape == (50, 16, 16, 3)
    assert stats.chisquare(np.bincount(noise.ravel(), minlength=256)).pvalue > 0.001


def test_areas_in_the_wrong_order_are_refused():
    with pytest.raises(UserError, match=r"smallest_area=0\.5 and largest_area=0\.3"):
        erasing.build(smallest_area=0.5, largest_area=0.3)


def test_unknown_fill_is_refused():
    with pytest.raises(UserError, match=r"erasing\.fill='gray'.*Did you mean grey\?"):
        erasing.build(fill="gray")


@pytest.mark.parametrize("field", ["brightness", "contrast", "saturation", "hue"])
def test_each_colour_is_changed_by_its_own_field(field):
    images = tf.constant(tiny.photos(8, 8))
    changed = color_jitter.build(**{field: 0.3})(images, keys(8)).numpy()
    assert (changed != images.numpy()).any()
    assert np.abs(changed.astype(int) - images.numpy()).mean() < 60


def test_hue_leaves_grey_images_alone():
    images = tf.constant(tiny.photos(4, 8)[..., :1])
    np.testing.assert_array_equal(color_jitter.build(hue=0.5)(images, keys(4)), images)
