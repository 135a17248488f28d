import keras
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


def test_given_statistics_are_taken():
    apply = normalize.build(no_statistics, normalize="given", mean="100, 0", deviation="50, 2")
    images = np.uint8([[[[0, 0], [100, 4], [255, 255]]]])
    # The scale 1 / 50 is rounded to float32.
    np.testing.assert_allclose(
        apply(images), [[[[-2, 0], [0, 2], [3.1, 127.5]]]], rtol=1e-6, atol=0
    )


@pytest.mark.parametrize(
    ("mean", "deviation", "message"),
    [
        ("", "", "expected one number for each channel"),
        ("1,2,3", "1,2", "expected one number for each channel"),
        ("1,2", "1,0", "expected one number for each channel"),
        ("1,two", "1,2", "expected one number for each channel"),
        ("nan", "1", "expected one number for each channel"),
        ("0.485,0.456,0.406", "0.229,0.224,0.225", "look like shares of 255"),
    ],
)
def test_statistics_that_cannot_be_are_refused(mean, deviation, message):
    with pytest.raises(UserError, match=message):
        normalize.build(no_statistics, normalize="given", mean=mean, deviation=deviation)


def test_statistics_that_would_not_be_used_are_refused():
    with pytest.raises(UserError, match="go with 'given', and only with it"):
        normalize.build(no_statistics, mean="1", deviation="1")
    with pytest.raises(UserError, match="goes with 'model', and only with it"):
        normalize.build(no_statistics, normalize_model="VGG16")


def test_vgg16_is_fed_bgr_less_the_mean():
    apply = normalize.build(no_statistics, "VGG16", normalize="model")
    got = apply(np.uint8([[[[255, 0, 128]]]]))
    # BGR: 128 - 103.939, 0 - 116.779, 255 - 123.68; float32 carries seven digits.
    np.testing.assert_allclose(got, [[[[24.061, -116.779, 131.32]]]], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ResNet50", [24.061, -116.779, 131.32]),
        ("MobileNetV2", [1.0, -1.0, 128 / 127.5 - 1]),
        ("DenseNet121", [(1 - 0.485) / 0.229, -0.456 / 0.224, (128 / 255 - 0.406) / 0.225]),
    ],
)
def test_each_kind_of_preprocessing_is_the_models(name, expected):
    apply = normalize.build(no_statistics, "resnet9", normalize="model", normalize_model=name)
    got = tf.function(apply)(tf.constant([[[[255, 0, 128]]]], tf.uint8))
    assert (got.dtype, got.shape) == (tf.float32, (1, 1, 1, 3))
    np.testing.assert_allclose(got[0, 0, 0], expected, rtol=1e-5, atol=1e-6)


def test_every_application_is_preprocessed_or_refused():
    names = [name for name in vars(keras.applications) if name[0].isupper()]
    inside = []
    for name in names:
        try:
            normalize.build(no_statistics, name, normalize="model")(np.zeros((1, 1, 1, 3)))
        except UserError as error:
            assert "use data.normalize=none" in str(error)
            inside.append(name)
    assert len(names) > 30
    assert {"EfficientNetB0", "EfficientNetV2B0", "ConvNeXtTiny", "MobileNetV3Small"} <= {
        *inside
    }
    assert {"VGG16", "ResNet50", "MobileNetV2", "DenseNet121"}.isdisjoint(inside)


@pytest.mark.parametrize("name", ["resnet9", "my_models:Net", ""])
def test_a_model_without_known_preprocessing_is_refused(name):
    with pytest.raises(UserError, match=r"not of keras\.applications.*normalize_model=VGG16"):
        normalize.build(no_statistics, name, normalize="model")


def test_an_application_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"for 'VGG17'.*Did you mean VGG"):
        normalize.build(no_statistics, "VGG17", normalize="model")
