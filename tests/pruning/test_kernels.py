"""Which weights can be pruned, and how patterns choose among them."""

import functools

import keras
import pytest
import tiny

from tfaccel.errors import UserError
from tfaccel.pruning import kernels


def paths(model):
    return [kernel.path for kernel in kernels.find(model)]


@functools.cache
def nested():
    """VGG-16, whose 14.7 million weights are made once, inside a Sequential model."""
    inner = keras.applications.VGG16(weights=None, include_top=False, input_shape=(32, 32, 3))
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            inner,
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(4, name="head"),
        ]
    )


def test_biases_normalisation_and_depthwise_kernels_are_never_pruned():
    layers = [
        keras.layers.Conv2D(4, 3, name="conv"),
        keras.layers.BatchNormalization(),
        keras.layers.DepthwiseConv2D(3),
        keras.layers.SeparableConv2D(4, 1, name="separable"),
        keras.layers.LayerNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(4, name="dense"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    parts = [path.split("/")[-2:] for path in paths(model)]
    kernels_of = [["conv", "kernel"], ["dense", "kernel"]]
    assert parts == [kernels_of[0], ["separable", "pointwise_kernel"], kernels_of[1]]


def test_nested_models_are_searched_and_shared_layers_counted_once():
    found = paths(nested())
    assert len(found) == 14
    assert sum("block" in path for path in found) == 13
    dense = keras.layers.Dense(4)
    inputs = keras.Input((4,))
    assert len(paths(keras.Model(inputs, dense(dense(inputs))))) == 1


def test_layers_held_by_layers_are_found_through_the_private_name():
    # kernels.find stands on Layer._flatten_layers; if it fails, Keras has changed.
    attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
    inputs = keras.Input((5, 8))
    lstm = keras.layers.Bidirectional(keras.layers.LSTM(3))
    found = paths(keras.Model(inputs, lstm(attention(inputs, inputs))))
    parts = [path.rsplit("/", 2)[-2:] for path in found]
    for name in ("query", "key", "value", "attention_output"):
        assert [name, "kernel"] in parts
    assert sum(part == ["lstm_cell", "recurrent_kernel"] for part in parts) == 2
    assert len(found) == 8


def sparsities(model, layers):
    found = kernels.targets(model, 0.8, layers)
    return {target.kernel.layer.name: target.sparsity for target in found}


def test_patterns_set_targets_and_leave_layers_out():
    assert sparsities(tiny.model(), {}) == {"conv": 0.8, "dense": 0.8}
    assert sparsities(tiny.model(), {"conv": 0}) == {"dense": 0.8}
    assert sparsities(tiny.model(), {"d*": 0.9}) == {"conv": 0.8, "dense": 0.9}
    assert sparsities(tiny.model(), {"*": 0.5, "dense": 0.9}) == {"conv": 0.5, "dense": 0.9}
    model = nested()
    assert len(sparsities(model, {"block[1-4]_*": 0})) == 4


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            {"dens": 0.5},
            "received pruning.layers.dens, which matches no layer with a kernel. Did you mean "
            "dense? Known: conv, dense.",
        ),
        (
            {"con*": 0.5, "c*": 0.6},
            "received pruning.layers={'con*': 0.5, 'c*': 0.6}, which all match conv/kernel: "
            "name the layer itself (conv), or make the patterns narrower.",
        ),
    ],
)
def test_patterns_that_match_nothing_or_disagree_are_refused(layers, message):
    with pytest.raises(UserError) as error:
        kernels.targets(tiny.model(), 0.8, layers)
    assert str(error.value) == message


def test_nothing_left_to_prune_is_refused():
    with pytest.raises(UserError, match="there is nothing to prune"):
        kernels.targets(tiny.model(), 0.8, {"*": 0})


def test_a_subclassed_model_that_was_never_built_is_refused():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.dense = keras.layers.Dense(4)

        def call(self, x):
            return self.dense(x)

    model = Own()
    with pytest.raises(UserError) as error:
        kernels.find(model)
    assert str(error.value) == (
        "received the model 'own', which has no weights yet: call it on a batch, or "
        "model.build(input_shape), before it is pruned."
    )
    model(keras.ops.ones((1, 4)))
    assert len(paths(model)) == 1
