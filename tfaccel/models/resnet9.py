"""ResNet-9, the small residual net that learns CIFAR-10 in a few epochs."""

from __future__ import annotations

from tfaccel.lazy import keras
from tfaccel.models.layers import check_size, conv_norm, logits


def resnet9(
    *, input_shape: tuple[int, int, int], num_classes: int, width: int = 64
) -> keras.Model:
    """Returns a ResNet-9 with logits as output.

    The layout of Page, "How to Train Your ResNet" (2018): four convolutions
    that double the width, two residual pairs, a global maximum, logits scaled
    by 1/8.

    Args:
        input_shape: (height, width, channels), at least 8 pixels a side.
        num_classes: Number of outputs.
        width: Channels of the first convolution; 64 in the original.
    """
    check_size(input_shape, 8)
    inputs = keras.Input(input_shape)
    x = conv_norm(inputs, width, 3)
    x = _halve(conv_norm(x, 2 * width, 3))
    x = _residual_pair(x, 2 * width)
    x = _halve(conv_norm(x, 4 * width, 3))
    x = _halve(conv_norm(x, 8 * width, 3))
    x = _residual_pair(x, 8 * width)
    x = keras.layers.GlobalMaxPooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes, scale=0.125), name="resnet9")


def _halve(x):
    return keras.layers.MaxPooling2D(2)(x)


def _residual_pair(x, filters: int):
    return keras.layers.Add()([x, conv_norm(conv_norm(x, filters, 3), filters, 3)])
