import numpy as np
import pytest
import tensorflow as tf

from tfaccel.data import normalize
from tfaccel.data.sources import from_arrays
from tfaccel.errors import UserError


def skewed(count, shape=(4, 4, 3)):
    """Images whose channels have means and deviations of their own."""
    random = np.random.default_rng(0)
    scale = np.linspace(0.2, 1, shape[-1])
    return (random.random((count, *shape)) ** 2 * 255 * scale).astype(np.uint8)


def source_of(images):
    return from_arrays(images, np.zeros(len(images), np.int64))


def no_statistics():
    raise AssertionError("the training images were read for nothing")


# The statistics are gathered 4,096 images at a time.
@pytest.mark.parametrize("count", [1, 100, 4096, 5000])
@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_equal_numpy_in_float64(count, channels):
    images = skewed(count, (4, 4, channels))
    mean, deviation = normalize.channel_statistics(source_of(images))
    values = images.astype(np.float64)
    assert mean.dtype == deviation.dtype == np.float32
    # One unit in the last place: the result is rounded to float32 once.
    np.testing.assert_array_max_ulp(mean, np.float32(values.mean(axis=(0, 1, 2))))
    np.testing.assert_array_max_ulp(deviation, np.float32(values.std(axis=(0, 1, 2))))


def test_statistics_are_those_of_the_subset():
    images = skewed(100)
    chosen = np.array([3, 50, 99])
    got = normalize.channel_statistics(source_of(images).subset(chosen))
    want = normalize.channel_statistics(source_of(images[chosen]))
    np.testing.assert_array_equal(got, want)


def test_constant_channel_has_deviation_one():
    images = skewed(10)
    images[..., 1] = 77
    mean, deviation = normalize.channel_statistics(source_of(images))
    assert (mean[1], deviation[1]) == (77, 1)
    assert deviation[0] != 1
    apply = normalize.build(lambda: (mean, deviation))
    assert not apply(images)[..., 1].numpy().any()


def test_normalised_training_set_has_mean_0_and_deviation_1():
    source = source_of(skewed(5000))
    apply = normalize.build(lambda: normalize.channel_statistics(source))
    values = apply(source.images).numpy().astype(np.float64)
    # float32 carries 7 digits, and the mean is about as large as the deviation.
    np.testing.assert_allclose(values.mean(axis=(0, 1, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(values.std(axis=(0, 1, 2)), 1, atol=1e-4)


def test_dataset_takes_away_the_mean_and_divides_by_the_deviation():
    statistics = np.float32([100, 0]), np.float32([50, 2])
    apply = normalize.build(lambda: statistics, normalize="dataset")
    images = np.uint8([[[[0, 0], [100, 4], [255, 255]]]])
    # The scale 1 / 50 is rounded to float32.
    np.testing.assert_allclose(
        apply(images), [[[[-2, 0], [0, 2], [3.1, 127.5]]]], rtol=1e-6, atol=0
    )


def test_unit_maps_to_0_and_1():
    got = normalize.build(no_statistics, normalize="unit")(np.uint8([0, 51, 255]))
    # The scale 1 / 255 is rounded to float32.
    np.testing.assert_allclose(got, [0, 0.2, 1], rtol=1e-6, atol=0)


def test_none_leaves_the_numbers():
    values = np.arange(256, dtype=np.uint8)
    got = normalize.build(no_statistics, normalize="none")(values)
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("name", ["dataset", "unit", "none"])
def test_result_is_float32_of_the_same_shape(name):
    statistics = np.float32([1, 2, 3]), np.float32([1, 1, 1])
    apply = tf.function(normalize.build(lambda: statistics, normalize=name))
    got = apply(tf.zeros([2, 4, 5, 3], tf.uint8))
    assert (got.dtype, got.shape) == (tf.float32, (2, 4, 5, 3))


def test_unknown_mode_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"data\.normalize='units'.*Did you mean unit\?"):
        normalize.build(no_statistics, normalize="units")
