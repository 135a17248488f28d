"""The model that is exported gives the outputs of the one that was trained."""

import keras
import numpy as np
import pytest

from tests import tiny
from tfaccel.errors import UserError
from tfaccel.export import rebuild
from tfaccel.export.normalization import Normalization, from_function

layers = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype(np.float32)


def settled(model, seed=0):
    """Gives every weight, BatchNormalization's statistics too, a value of its own."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        low, high = (0.5, 2.0) if "variance" in variable.path else (-0.5, 0.5)
        variable.assign(random.uniform(low, high, variable.shape))
    return model


def graph(*blocks, shape=(8, 8, 3)):
    inputs = x = keras.Input(shape)
    for block in blocks:
        x = block(x)
    return settled(keras.Model(inputs, layers.Dense(4)(layers.Flatten()(x))))


def outputs(model, images=IMAGES):
    return model.predict(images, verbose=0)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_the_copy_has_the_same_weights_in_float32(policy):
    model = settled(tiny.model(norm=layers.BatchNormalization(dtype=policy), policy=policy))
    copy = rebuild.float32(model)
    assert {layer.compute_dtype for layer in copy.layers} == {"float32"}
    assert {layer.variable_dtype for layer in copy.layers} == {"float32"}
    for ours, theirs in zip(copy.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Half precision rounds activations to 8 bits (bfloat16), outputs here are below 10.
    tolerance = 1e-5 if policy == "float32" else 0.2
    np.testing.assert_allclose(outputs(copy), outputs(model), atol=tolerance)


def test_the_copy_leaves_training_behind():
    model = tiny.model()
    model.get_layer("dense").kernel_constraint = keras.constraints.NonNeg()
    copy = rebuild.float32(model)
    dense = copy.get_layer("dense")
    assert (dense.kernel_constraint, dense.kernel_regularizer) == (None, None)
    assert not copy.compiled
    assert model.compiled


def test_nested_models_are_rebuilt_too():
    keras.config.set_dtype_policy("mixed_bfloat16")
    inner = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization()]
    )
    inputs = keras.Input((8, 8, 3))
    both = layers.Add()([inner(inputs), inner(keras.ops.abs(inputs))])
    head = layers.Dense(4, dtype="float32")(layers.Flatten()(both))
    model = settled(keras.Sequential([keras.Input((8, 8, 3)), keras.Model(inputs, head)]))
    copy = rebuild.float32(model)
    assert {layer.compute_dtype for layer in rebuild.flat_layers(copy)} == {"float32"}
    assert rebuild.batch_norms(copy) == 1
    folded = rebuild.fold_batch_norm(copy)
    assert rebuild.batch_norms(folded) == 0
    np.testing.assert_allclose(outputs(folded), outputs(copy), atol=1e-5)


FOLDED = {
    "Conv2D": lambda: layers.Conv2D(5, 3, padding="same"),
    "no bias": lambda: layers.Conv2D(5, 3, use_bias=False),
    "groups": lambda: layers.Conv2D(6, 3, groups=3),
    "DepthwiseConv2D": lambda: layers.DepthwiseConv2D(3, depth_multiplier=2),
    "Conv2DTranspose": lambda: layers.Conv2DTranspose(5, 3, strides=2),
    "SeparableConv2D": lambda: layers.SeparableConv2D(5, 3, use_bias=False),
    "Dense": lambda: layers.Dense(5),
}


@pytest.mark.parametrize("layer", FOLDED.values(), ids=FOLDED)
def test_batch_norm_is_folded_into_the_layer_before_it(layer):
    model = graph(layer(), layers.BatchNormalization(epsilon=0.01), layers.ReLU())
    folded = rebuild.fold_batch_norm(model)
    assert rebuild.batch_norms(folded) == 0
    # The same products, added in another order.
    np.testing.assert_allclose(outputs(folded), outputs(model), atol=1e-5)


@pytest.mark.parametrize("options", [{"scale": False}, {"center": False}, {"axis": 3}])
def test_every_kind_of_normalisation_of_the_last_axis_is_folded(options):
    model = graph(layers.Conv2D(5, 3), layers.BatchNormalization(**options))
    folded = rebuild.fold_batch_norm(model)
    assert rebuild.batch_norms(folded) == 0
    np.testing.assert_allclose(outputs(folded), outputs(model), atol=1e-5)


def read_twice(x):
    x = layers.Conv2D(5, 3)(x)
    return layers.Add()([x, layers.BatchNormalization()(x)])


def shared(x):
    conv = layers.Conv2D(3, 3, padding="same")
    return layers.BatchNormalization()(conv(conv(x)))


KEPT = {
    "an activation between": lambda x: layers.BatchNormalization()(
        layers.Conv2D(5, 3, activation="relu")(x)
    ),
    "before the convolution": lambda x: layers.Conv2D(5, 3)(layers.BatchNormalization()(x)),
    "another axis": lambda x: layers.BatchNormalization(axis=1)(layers.Conv2D(5, 3)(x)),
    "read twice": read_twice,
    "a layer called twice": shared,
}


@pytest.mark.parametrize("block", KEPT.values(), ids=KEPT)
def test_batch_norm_is_kept_where_folding_would_change_the_model(block):
    model = graph(block)
    folded = rebuild.fold_batch_norm(model)
    assert rebuild.batch_norms(folded) == 1
    np.testing.assert_allclose(outputs(folded), outputs(model), atol=1e-5)


def test_a_normalization_layer_keeps_what_it_adapted_to():
    normalization = layers.Normalization()
    normalization.adapt(3 * IMAGES + 5)
    model = graph(layers.Conv2D(5, 3))
    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, model(normalization(inputs)))
    np.testing.assert_allclose(outputs(rebuild.float32(model)), outputs(model), atol=1e-5)


def test_layers_that_only_train_are_as_quiet_as_before():
    model = graph(layers.RandomFlip(seed=1), layers.Conv2D(5, 3), layers.Dropout(0.5))
    np.testing.assert_allclose(outputs(rebuild.float32(model)), outputs(model), atol=1e-6)


def test_zeros_stay_zeros():
    model = graph(layers.Conv2D(8, 3), layers.BatchNormalization())
    kernel = model.layers[1].kernel
    mask = np.random.default_rng(1).random(kernel.shape) < 0.25
    kernel.assign(kernel * mask)
    folded = rebuild.fold_batch_norm(rebuild.float32(model))
    np.testing.assert_array_equal(folded.layers[1].get_weights()[0] != 0, mask)


def test_preprocessing_in_the_model_is_the_normalisation():
    normalization = from_function(lambda x: (x - np.float32([100, 120, 90])) / 60, 3)
    model = graph(layers.Conv2D(5, 3))
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), dtype=np.uint8)
    whole = rebuild.include_preprocessing(model, normalization)
    assert whole.inputs[0].dtype == "uint8"
    expected = outputs(model, normalization(images))
    np.testing.assert_allclose(outputs(whole, images), expected, atol=1e-5)


def test_a_normalisation_that_numbers_cannot_hold_is_refused():
    with pytest.raises(UserError, match="not a factor and a term for each channel"):
        from_function(np.sqrt, 3)
    assert from_function(lambda x: x / np.float32(255), 1) == Normalization(
        (pytest.approx(1 / 255),), (0.0,)
    )


def test_what_cannot_be_taken_apart_is_refused():
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(UserError, match="is a subclass with its own call"):
        rebuild.float32(Own(name="own"))
    two = [keras.Input((2,)), keras.Input((2,))]
    with pytest.raises(UserError, match="2 inputs and 1 outputs, expected one each"):
        rebuild.float32(keras.Model(two, layers.Add()(two)))
    with pytest.raises(UserError, match=r"received list, expected a keras\.Model"):
        rebuild.float32([])


class Scaled(keras.Model):
    def __init__(self, factor=2.0, **kwargs):
        super().__init__(**kwargs)
        self.factor, self.dense = factor, layers.Dense(4)

    def call(self, x):
        return self.factor * self.dense(layers.Flatten()(x))

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def test_a_subclass_can_be_wrapped_as_the_refusal_says():
    inputs = keras.Input((8, 8, 3))
    model = settled(keras.Model(inputs, Scaled(3.0)(inputs)))
    np.testing.assert_allclose(outputs(rebuild.float32(model)), outputs(model), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "kept"),
    [("MobileNetV2", 32, 0), ("ResNet50V2", 32, None), ("EfficientNetB0", 32, 0)],
)
def test_applications_keep_their_outputs(name, size, kept):
    build = getattr(keras.applications, name)
    model = build(input_shape=(size, size, 3), weights=None, classes=10)
    copy = rebuild.float32(model)
    folded = rebuild.fold_batch_norm(copy)
    assert rebuild.batch_norms(folded) < rebuild.batch_norms(model)
    if kept is not None:
        assert rebuild.batch_norms(folded) == kept
    images = np.random.default_rng(0).normal(size=(4, size, size, 3)).astype(np.float32)
    np.testing.assert_allclose(outputs(folded, images), outputs(model, images), atol=1e-5)
