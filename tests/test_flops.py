"""Floating point operations, against counts made by hand."""

import keras
import pytest

from tfaccel import chips, flops
from tfaccel.models import registry


def test_resnet9_by_hand():
    model = registry.build((32, 32, 3), 10, name="resnet9")
    first = 32 * 32 * 3 * 3 * 3 * 64
    others = (
        32 * 32 * 3 * 3 * 64 * 128
        + 2 * 16 * 16 * 3 * 3 * 128 * 128
        + 16 * 16 * 3 * 3 * 128 * 256
        + 8 * 8 * 3 * 3 * 256 * 512
        + 2 * 4 * 4 * 3 * 3 * 512 * 512
        + 512 * 10
    )
    assert flops.forward(model) == 2 * (first + others) == 758_523_904
    assert flops.training(model) == 2 * (2 * first + 3 * others) == 2_272_032_768


def model_of(*layers, shape=(8, 8, 4)):
    return keras.Sequential([keras.Input(shape), *layers])


@pytest.mark.parametrize(
    ("layer", "multiply_adds"),
    [
        (keras.layers.Conv2D(6, 3, strides=2, padding="same"), 16 * 9 * 4 * 6),
        (keras.layers.Conv2D(6, 3, groups=2), 36 * 9 * 2 * 6),
        (keras.layers.DepthwiseConv2D(3), 36 * 9 * 4),
        (keras.layers.SeparableConv2D(6, 3), 36 * (9 * 4 + 4 * 6)),
        (keras.layers.Conv2DTranspose(6, 2, strides=2), 64 * 4 * 4 * 6),
        (keras.layers.Dense(5), 64 * 4 * 5),
        (keras.layers.ReLU(), 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_one_layer(layer, multiply_adds):
    assert flops.forward(model_of(layer)) == 2 * multiply_adds


def test_a_model_inside_a_model_counts():
    inner = model_of(keras.layers.Dense(3), shape=(4,))
    outer = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2)])
    assert flops.training(outer) == 2 * (2 * 4 * 3 + 3 * 3 * 2)


def test_an_unknown_size_is_an_error():
    with pytest.raises(ValueError, match="is unknown"):
        flops.forward(model_of(keras.layers.Conv2D(6, 3), shape=(None, None, 4)))


@pytest.mark.parametrize(
    ("name", "policy", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "mixed_bfloat16", 312.0),
        ("NVIDIA A100-SXM4-80GB", "float32", 156.0),
        ("NVIDIA H100 80GB HBM3", "mixed_bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "mixed_bfloat16", 756.0),
        ("NVIDIA H200", "mixed_bfloat16", 989.4),
        ("Tesla T4", "mixed_float16", 65.0),
        ("Tesla V100-SXM2-16GB", "mixed_float16", 125.0),
        ("NVIDIA A10G", "mixed_float16", 70.0),
        ("NVIDIA A10", "mixed_float16", 125.0),
        ("NVIDIA L4", "mixed_bfloat16", 121.0),
        ("NVIDIA L40S", "mixed_bfloat16", 362.0),
        ("NVIDIA GeForce RTX 4090", "mixed_float16", 165.2),
    ],
)
def test_peaks_of_chips(name, policy, tera):
    assert chips.peak_flops_per_second(name, policy) == tera * 1e12


@pytest.mark.parametrize(
    ("name", "policy"), [("Tesla T4", "mixed_bfloat16"), ("NVIDIA A1000", "float32"), ("", "")]
)
def test_what_is_not_known_is_none(name, policy):
    assert chips.peak_flops_per_second(name, policy) is None
