"""Masks, against TFMOT's own on the same weights."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.errors import UserError
from tfaccel.pruning import kernels, selection, tfmot

TIES = np.float32([3, -1, 1, 2, -2, 1, 1, 0, 0, 5, 1, -1]).reshape(4, 3)
VALUES = {
    "normal": np.float32(np.random.default_rng(0).normal(size=(3, 3, 12, 16))),
    "small": np.float32(np.random.default_rng(1).normal(size=(5, 7))),
    "ties": TIES,
    "all equal": np.full((4, 4), -0.5, np.float32),
    "all zero": np.zeros((4, 4), np.float32),
    "one weight": np.float32([[2]]),
    "mostly zero": np.float32(np.random.default_rng(2).normal(size=(8, 8)) > 1),
}


def tfmot_pruning(sparsity, m_by_n=None):
    tfmot.load()
    from tensorflow_model_optimization.python.core.sparsity.keras import pruning_impl

    def schedule(step):
        return True, tf.constant(sparsity, tf.float32)

    return pruning_impl.Pruning(lambda: 0, [], schedule, (1, 1), "AVG", m_by_n)


def rule(kind, values, *arguments):
    layers = [keras.layers.Dense(1) for _ in values]
    weights = [keras.Variable(value, name="kernel") for value in values]
    found = [kernels.Kernel(*pair) for pair in zip(layers, weights, strict=True)]
    return kind([kernels.Target(kernel, 0.5) for kernel in found], *arguments)


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.34, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("name", VALUES)
def test_masks_are_those_of_tfmot_ties_included(name, sparsity):
    value = VALUES[name]
    by_layer = rule(selection.ByLayer, [VALUES["normal"]])
    (mask,) = by_layer.masks([value], [np.float32(sparsity)])
    _, expected = tfmot_pruning(sparsity)._update_mask(tf.constant(value))
    np.testing.assert_array_equal(mask, expected.numpy().astype(bool))


@pytest.mark.parametrize("m_by_n", [(2, 4), (1, 4), (3, 8), (1, 2)])
@pytest.mark.parametrize("name", VALUES)
def test_m_by_n_masks_are_those_of_tfmot_ties_and_short_groups_included(name, m_by_n):
    value = VALUES[name]
    (mask,) = rule(selection.ByGroups, [value], *m_by_n).masks([value], [0.5])
    expected = tfmot_pruning(0.5, m_by_n)._update_mask_sparsity_m_by_n(
        tf.constant(value), m_by_n
    )
    np.testing.assert_array_equal(mask, expected.numpy().astype(bool))


def test_of_1728_weights_half_are_864():
    value = np.float32(np.random.default_rng(0).normal(size=(3, 3, 12, 16)))
    (mask,) = rule(selection.ByLayer, [value]).masks([value], [0.5])
    assert (mask.size, mask.sum()) == (1728, 864)


def test_groups_of_four_run_along_the_input_channels():
    value = np.float32(np.arange(1, 17).reshape(1, 1, 8, 2))
    (mask,) = rule(selection.ByGroups, [value], 2, 4).masks([value], [0.5])
    expected = [False, False, True, True] * 2
    np.testing.assert_array_equal(mask[0, 0, :, 0], expected)
    np.testing.assert_array_equal(mask[0, 0, :, 1], expected)


def test_a_global_threshold_takes_the_smallest_wherever_they_are():
    values = [np.float32([[1, -2], [3, 4]]), np.float32([[10, 20], [-30, 40]])]
    first, second = rule(selection.Globally, values).masks(values, [0.5, 0.5])
    assert not first.any()
    assert second.all()


@pytest.mark.parametrize("text", ["2", "4:2", "0:4", "2:2", "2:4:8", "a:b", "2/4"])
def test_other_texts_than_m_by_n_are_refused(text):
    with pytest.raises(UserError, match=f"received pruning.m_by_n={text}, expected 'm:n'"):
        selection.parse_m_by_n(text)


def test_shortfalls_are_counted():
    value = np.float32([[1, 0], [0, 0]])
    assert rule(selection.ByLayer, [value]).shortfalls([value]) == []
    full = np.float32(np.ones((4, 4)))
    assert rule(selection.ByLayer, [full]).shortfalls([full]) == ["kernel 0.0000"]
    assert rule(selection.Globally, [full]).shortfalls([full]) == [
        "all kernels together 0.0000"
    ]
    groups = np.float32([[1, 1], [1, 1], [1, 0], [0, 0]])
    assert rule(selection.ByGroups, [groups], 2, 4).shortfalls([groups]) == [
        "kernel: 1 of 2 groups"
    ]


def test_a_nan_is_no_small_weight():
    value = np.float32([[1, np.nan], [3, 4]])
    (mask,) = rule(selection.ByLayer, [VALUES["normal"]]).masks([value], [0.5])
    assert mask[0, 1]


def test_a_target_below_what_is_there_is_refused():
    value = np.float32(np.ones((10, 10)))
    value[:8] = 0
    with pytest.raises(UserError) as error:
        rule(selection.ByLayer, [value])
    assert str(error.value) == (
        "kernel has 0.80 of its weights zero already, asked for 0.50: ask for at least "
        "that, or leave layers out with pruning.layers={'NAME': 0}."
    )
    # Together with a dense kernel there are fewer.
    rule(selection.Globally, [value, np.float32(np.ones((10, 10)))])
    with pytest.raises(UserError, match=r"the model has 0\.80 of its weights zero already"):
        rule(selection.Globally, [value])


def test_a_kernel_that_starts_from_zeros_is_fine():
    rule(selection.ByLayer, [np.zeros((4, 4), np.float32)])


def test_m_by_n_refuses_layers_without_input_channels_to_group():
    model = keras.Sequential(
        [keras.Input((8, 8, 4)), keras.layers.Conv2DTranspose(3, 2, name="upwards")]
    )
    layers = re.escape("leave it out with pruning.layers={'upwards': 0}.")
    with pytest.raises(UserError, match=f"is a Conv2DTranspose, expected .* {layers}"):
        selection.build(kernels.targets(model, 0.5, {}), "layer", "2:4")


def test_selection_leaves_the_weights_alone():
    value = VALUES["normal"].copy()
    for kind, more in ((selection.ByLayer, ()), (selection.Globally, ())):
        rule(kind, [value], *more).masks([value], [0.5])
    rule(selection.ByGroups, [value], 2, 4).masks([value], [0.5])
    np.testing.assert_array_equal(value, VALUES["normal"])
