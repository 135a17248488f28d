import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel import precision
from tfaccel.models import registry

POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]
# Name, height and width of the images, classes. ResNet-50 has a stem for small images
# and one for large ones.
MODELS = [("resnet9", 8, 10), ("resnet50", 32, 10), ("resnet50", 96, 1000), ("vgg16", 32, 10)]


def built(name, size, classes, policy="float32"):
    return _built_once(name, size, classes, policy)


@functools.cache
def _built_once(name, size, classes, policy):
    with precision.scope(keras.DTypePolicy(policy)):
        return registry.build((size, size, 3), classes, name=name)


def layers(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("name", "size", "classes"), MODELS)
def test_outputs_are_float32_logits_whatever_the_policy(name, size, classes, policy):
    model = built(name, size, classes, policy)
    assert model.output_shape == (None, classes)
    assert model.output.dtype == "float32"
    assert not registry.gives_probabilities(model)
    # All but the last layers compute in the policy's precision.
    convolutions = layers(model, keras.layers.Conv2D)
    assert {c.compute_dtype for c in convolutions} == {policy.removeprefix("mixed_")}
    assert {v.dtype for v in model.variables} == {"float32"}


@pytest.mark.parametrize("policy", POLICIES)
def test_images_become_finite_float32_numbers(policy):
    images = tf.random.stateless_uniform([2, 8, 8, 3], [0, 0], -2, 2)
    outputs = built("resnet9", 8, 10, policy)(images, training=True)
    assert outputs.dtype == tf.float32
    assert np.isfinite(outputs).all()


@pytest.mark.parametrize(
    ("name", "size", "classes", "trainable", "moving"),
    [
        # Page's count, and 10 biases of the last layer, which his net has not.
        ("resnet9", 8, 10, 6_573_120 + 10, 4_480),
        # torchvision's count of ResNet-50 for ImageNet.
        ("resnet50", 96, 1000, 25_557_032, 53_120),
        # The same with 10 classes and the 3x3 stem.
        ("resnet50", 32, 10, 25_557_032 - 2049 * 990 - 64 * 3 * (7 * 7 - 3 * 3), 53_120),
        # The published VGG-16's convolutions with a scale and a shift where each had a
        # bias, and one Dense layer of 512 x 10.
        ("vgg16", 32, 10, 14_714_688 + 4_224 + 513 * 10, 2 * 4_224),
    ],
)
def test_number_of_parameters(name, size, classes, trainable, moving):
    model = built(name, size, classes)
    assert sum(v.value.shape.num_elements() for v in model.trainable_variables) == trainable
    assert model.count_params() == trainable + moving


@pytest.mark.parametrize(
    ("size", "kernel", "strides", "pooled", "last"),
    [(32, (3, 3), (1, 1), 0, 4), (96, (7, 7), (2, 2), 1, 3)],
)
def test_resnet50_stem_fits_the_images(size, kernel, strides, pooled, last):
    model = built("resnet50", size, 10 if size == 32 else 1000)
    stem = layers(model, keras.layers.Conv2D)[0]
    assert (stem.kernel_size, stem.strides) == (kernel, strides)
    assert len(layers(model, keras.layers.MaxPooling2D)) == pooled
    (pool,) = layers(model, keras.layers.GlobalAveragePooling2D)
    assert pool.input.shape == (None, last, last, 2048)


def test_resnet50_blocks_begin_as_nothing():
    # The last normalisation of each of the 16 blocks starts with the scale 0.
    norms = layers(built("resnet50", 32, 10), keras.layers.BatchNormalization)
    assert sum(not layer.gamma.numpy().any() for layer in norms) == 16


def test_resnet9_width_scales_all_layers():
    model = registry.build((8, 8, 3), 10, name="resnet9", arguments={"width": 4})
    filters = [layer.filters for layer in layers(model, keras.layers.Conv2D)]
    assert filters == [4, 8, 8, 8, 16, 32, 32, 32]
    assert model.layers[-1].scale == 0.125


@pytest.mark.parametrize(("name", "size", "classes"), MODELS)
def test_layers_are_stock_keras(name, size, classes):
    model = built(name, size, classes)
    parts = [model, *model.layers]
    assert {type(part).__module__.partition(".")[0] for part in parts} == {"keras"}
    assert "tfaccel" not in model.to_json()


@pytest.mark.parametrize(
    ("name", "size", "policy"),
    [
        ("resnet9", 8, "float32"),
        ("resnet9", 8, "mixed_bfloat16"),
        ("resnet50", 32, "float32"),
        ("vgg16", 32, "float32"),
    ],
)
def test_saved_model_is_loaded_by_keras_alone(name, size, policy, tmp_path):
    model = built(name, size, 10, policy)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    images = tf.random.stateless_uniform([2, size, size, 3], [0, 0], -2, 2)
    # The same arithmetic; threads may add in another order.
    np.testing.assert_allclose(loaded(images), model(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["resnet9", "vgg16"])
def test_images_need_not_be_square_or_coloured(name):
    arguments = {"width": 4} if name == "resnet9" else {}
    model = registry.build((32, 48, 1), 3, name=name, arguments=arguments)
    assert model.input_shape == (None, 32, 48, 1)
    assert model.output_shape == (None, 3)
