"""New heads on networks of keras.applications, and the weights they start from."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfaccel import host, loop, plan
from tfaccel.errors import UserError
from tfaccel.models import pretrained, registry

SMALL = {"alpha": 0.35}
SHAPE = (32, 32, 3)
# As Keras 3.15 calls it.
MOBILENET = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.35_224_no_top.h5"


@pytest.fixture
def keras_home(tmp_path, monkeypatch):
    """Keras's folder, empty; there is no network."""

    def offline():
        raise OSError("no route\nto the host")

    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(host, "check_network", offline)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def place(path, function=keras.applications.MobileNetV2, **arguments):
    """Places a weights file by hand; returns the network it is of."""
    network = function(weights=None, include_top=False, input_shape=SHAPE, **arguments)
    # Other numbers than a fresh network of the same seed would have.
    network.set_weights([w + 0.01 for w in network.get_weights()])
    network.save_weights(path.with_suffix(".weights.h5"))
    path.with_suffix(".weights.h5").rename(path)
    return network


def build(**options):
    options = {"head": "pooled", "arguments": SMALL, **options}
    return registry.build(SHAPE, 5, name="MobileNetV2", **options)


def layers_of(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


def test_the_head_is_pooling_a_hidden_layer_and_logits():
    model = build(hidden_units=7)
    pooling, hidden, last = model.layers[-3:]
    assert isinstance(pooling, keras.layers.GlobalAveragePooling2D)
    assert (hidden.units, hidden.activation) == (7, keras.activations.relu)
    assert (last.units, last.activation) == (5, keras.activations.linear)
    assert not registry.gives_probabilities(model)
    assert len(build().layers) == len(model.layers) - 1


def test_weights_placed_by_hand_are_taken(keras_home):
    network = place(keras_home / MOBILENET, **SMALL)
    model = build(weights="imagenet")
    for got, want in zip(model.get_weights()[:-2], network.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_no_weights_and_no_network_name_the_file_and_the_way_out(keras_home):
    with pytest.raises(UserError) as error:
        build(weights="imagenet")
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("the ImageNet weights of MobileNetV2 are not here and could not")
    for part in (
        "no route to the host",
        f"place {MOBILENET} (from https://",
        f"in {keras_home}",
        "--config.model.weights=None",
    ):
        assert part in message


def test_a_damaged_file_is_told_and_left_alone(keras_home):
    (keras_home / MOBILENET).write_bytes(b"no weights")
    with pytest.raises(UserError, match=f"{keras_home} cannot be read .*delete the file"):
        build(weights="imagenet")
    assert (keras_home / MOBILENET).read_bytes() == b"no weights"


def test_keras_finds_all_weights_by_the_function_that_is_replaced(keras_home):
    """PRIVATE KERAS API (3.15): fails once Keras fetches weights in another way."""
    from keras.src.utils import file_utils

    before = file_utils.get_file
    for name in ("VGG16", "ResNet50", "EfficientNetB0", "MobileNetV3Small", "ConvNeXtTiny"):
        with pytest.raises(UserError, match=f"weights of {name} are not here"):
            pretrained.build(name, SHAPE, 5, imagenet=True)
        assert file_utils.get_file is before


@pytest.mark.parametrize(
    ("freeze_base", "weights", "frozen", "reason"),
    [
        ("auto", "imagenet", True, "auto: it has ImageNet weights"),
        ("auto", None, False, "auto: no ImageNet weights"),
        (False, "imagenet", False, "as asked"),
        (True, None, True, "as asked"),
    ],
)
def test_what_is_frozen_and_why(keras_home, log, freeze_base, weights, frozen, reason):
    place(keras_home / MOBILENET, **SMALL)
    model = build(weights=weights, freeze_base=freeze_base)
    assert (len(model.trainable_variables) == 2) == frozen
    state = "frozen" if frozen else "trained"
    assert f"model: the base is {state} ({reason})" in log.messages
    assert any("frozen base has random weights" in m for m in log.messages) == (
        frozen and weights is None
    )


def train(model, steps=3):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, auto_scale_loss=False)
    data = tiny.training(count=16, size=32)
    loop.fit(model, data, plan.build(16, duration=f"{steps}st", global_batch_size=8))


def test_a_frozen_base_keeps_weights_and_statistics():
    model = build(freeze_base=True)
    norms = layers_of(model, keras.layers.BatchNormalization)
    before = model.get_weights()
    train(model)
    after = model.get_weights()
    assert len(norms) > 50
    for got, want in zip(after[:-2], before[:-2], strict=True):
        np.testing.assert_array_equal(got, want)
    # The bias, as hardly anything comes through so many random layers to the kernel.
    assert not np.array_equal(after[-1], before[-1])


def test_a_trained_base_moves_weights_and_statistics():
    model = build(freeze_base=False)
    norm = layers_of(model, keras.layers.BatchNormalization)[0]
    before = [np.array(norm.gamma), np.array(norm.moving_mean)]
    train(model)
    for old, new in zip(before, (norm.gamma, norm.moving_mean), strict=True):
        assert not np.array_equal(old, new)


def test_a_saved_model_is_still_frozen(tmp_path):
    model = build(freeze_base=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.trainable_variables) == 2
    images = tf.random.stateless_uniform([2, *SHAPE], [1, 2])
    np.testing.assert_array_equal(loaded(images), model(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet9", "head": "pooled"}, "head=pooled for model.name=resnet9.*VGG16"),
        ({"name": "a:b", "head": "pooled"}, "head=pooled for model.name=a:b"),
        ({"name": "VGG16", "hidden_units": 8}, "hidden_units=8 with model.head=original"),
        ({"name": "VGG16", "freeze_base": True}, "freeze_base=True with model.head=original"),
        ({"name": "VGG16", "weights": "imagenet"}, "1,000 classes.*model.head=pooled"),
        ({"name": "resnet9", "weights": "imagenet"}, "imagenet for model.name=resnet9"),
        (
            {"name": "VGG16", "head": "pooled", "arguments": {"pooling": "max"}},
            "model.arguments.pooling, which VGG16 does not take",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(options, message):
    with pytest.raises(UserError, match=message) as error:
        registry.build(SHAPE, 5, **options)
    assert "\n" not in str(error.value)
