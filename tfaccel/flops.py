"""Floating point operations of a model, counted from its layers."""

from __future__ import annotations

import math

from tfaccel.lazy import keras


def training(model: keras.Model) -> int:
    """Returns the operations of one training step for one image.

    Two for each multiply-add of convolutions and dense layers; all else (norms,
    activations, pooling) is left out, as is usual for MFU (Chowdhery et al., "PaLM",
    2022, appendix B). The backward pass takes twice the forward pass: the gradients
    of inputs and of weights. The first layer needs none of its input.

    Args:
        model: A built model with inputs of known size.

    Raises:
        ValueError: If a layer's output size is unknown.

    Example:
        >>> inputs = keras.Input((4,))
        >>> training(keras.Model(inputs, keras.layers.Dense(3)(inputs)))
        48
    """
    layers = list(_layers(model))
    total = sum(3 * forward_of(layer) for layer in layers)
    return total - (forward_of(layers[0]) if layers else 0)


def forward(model: keras.Model) -> int:
    """Returns the operations of the forward pass for one image."""
    return sum(forward_of(layer) for layer in _layers(model))


def forward_of(layer: keras.layers.Layer) -> int:
    """Returns 2 x the multiply-adds of one convolution or dense layer, for one image."""
    return 2 * _places(layer) * _multiply_adds_a_place(layer)


def _layers(model):
    """Convolutions and dense layers, in order, those of inner models too."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        elif _multiply_adds_a_place(layer):
            yield layer


def _places(layer) -> int:
    """How often the kernel is applied: once a place of the output.

    A transposed convolution spreads each place of its input instead.
    """
    transposed = isinstance(layer, _transposed())
    try:
        shape = (layer.input if transposed else layer.output).shape
    except AttributeError as error:  # a layer of no graph, or used in several places
        raise ValueError(f"the output of layer {layer.name!r} is unknown") from error
    if isinstance(layer, keras.layers.Dense):
        sizes = shape[1:-1]
    else:
        sizes = shape[1:-1] if layer.data_format == "channels_last" else shape[2:]
    if None in sizes:
        raise ValueError(f"the output size of layer {layer.name!r} is unknown: {shape}")
    return math.prod(sizes)


def _multiply_adds_a_place(layer) -> int:
    if isinstance(layer, (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)):
        return math.prod(layer.depthwise_kernel.shape) + math.prod(layer.pointwise_kernel.shape)
    plain = (
        keras.layers.Dense,
        keras.layers.Conv1D,
        keras.layers.Conv2D,
        keras.layers.Conv3D,
        keras.layers.DepthwiseConv1D,
        keras.layers.DepthwiseConv2D,
        *_transposed(),
    )
    return math.prod(layer.kernel.shape) if isinstance(layer, plain) else 0


def _transposed():
    layers = keras.layers
    return layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose
