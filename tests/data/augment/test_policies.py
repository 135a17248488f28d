"""RandAugment and TrivialAugment: who gets what, and the same everywhere."""

import numpy as np
import pytest
import tensorflow as tf
import tiny
from scipy import stats

from tfaccel import randomness
from tfaccel.data.augment import groups, randaugment, trivialaugment
from tfaccel.errors import UserError

BUILDERS = {
    "randaugment": randaugment.build(number=2),
    "trivialaugment": trivialaugment.build(enabled=True),
}


def keys(count, seed=0):
    return randomness.mix(seed, tf.range(count))


@pytest.mark.parametrize("name", BUILDERS)
def test_is_the_same_wherever_it_runs(name):
    images = tiny.photos(12, 12)
    changed = tiny.assert_same_wherever_it_runs(BUILDERS[name], images, keys(12))
    assert (changed != images).any(axis=(1, 2, 3)).sum() >= 6


@pytest.mark.parametrize("name", BUILDERS)
def test_key_alone_decides_whatever_the_batch(name):
    # More images than go through an operation at once.
    images, augment = tf.constant(tiny.photos(80, 6)), BUILDERS[name]
    together = augment(images, keys(80))
    for number in (0, 41, 79):
        part = slice(number, number + 1)
        alone = augment(images[part], keys(80)[part])
        np.testing.assert_array_equal(alone[0], together[number])


@pytest.mark.parametrize("name", BUILDERS)
def test_grey_images_are_welcome(name):
    images = tf.constant(tiny.photos(6, 8)[..., :1])
    assert BUILDERS[name](images, keys(6)).shape == images.shape


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("images", "found"),
    [(np.zeros((2, 4, 4, 3), np.float32), "float32 with 3"),
     (np.zeros((2, 4, 4, 4), np.uint8), "uint8 with 4")],
)  # fmt: skip
def test_other_images_are_refused(name, images, found):
    with pytest.raises(UserError, match=f"data.augment.{name}: .*{found} channels, expected"):
        BUILDERS[name](tf.constant(images), keys(2))


def test_two_turns_are_two_operations():
    images = tf.constant(tiny.photos(16, 8))
    one, two = (randaugment.build(number=n)(images, keys(16)) for n in (1, 2))
    assert not np.array_equal(one, two)


def test_magnitude_0_only_does_what_has_no_magnitude():
    # Autocontrast stretches, posterize keeps one bit, solarize inverts all from 0 on;
    # equalize leaves an image of two pixels alone.
    images = np.broadcast_to(np.uint8([60, 90])[:, None, None], (4000, 2, 1, 3))
    augment = tf.function(randaugment.build(number=1, magnitude=0.0))
    changed = augment(tf.constant(images), keys(4000)) != images
    share = changed.numpy().any(axis=(1, 2, 3)).sum()
    assert stats.binomtest(int(share), 4000, 3 / 11).pvalue > 0.001


@pytest.mark.parametrize("count", [1, 5, 32, 33, 200])
def test_groups_run_each_operation_on_the_images_that_drew_it(count):
    choices = randomness.draw(keys(count), "choice", 4)
    images = tf.zeros([count, 1, 1, 1], tf.uint8)
    adding = [lambda images, keys, n=n: images + np.uint8(n + 1) for n in range(4)]
    got = groups.apply(adding, choices, images, keys(count))
    np.testing.assert_array_equal(got[:, 0, 0, 0], choices + 1)


def test_operations_are_drawn_equally_often():
    drawn = randomness.draw(keys(40_000), "operation", 11).numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=11)).pvalue > 0.001
