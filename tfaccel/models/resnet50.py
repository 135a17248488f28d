"""ResNet-50, with a stem that fits the size of the images."""

from __future__ import annotations

from tfaccel.lazy import keras
from tfaccel.models.layers import check_size, conv_norm, logits

_SMALL = 64
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def resnet50(*, input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Returns a ResNet-50 (v1.5) with logits as output.

    He et al., "Deep Residual Learning" (2015), with the stride in the 3x3
    convolution. Images of up to 64 pixels get the 3x3 stem without pooling that
    the paper's own CIFAR models use; larger ones the 7x7 stem.

    Args:
        input_shape: (height, width, channels), at least 8 pixels a side.
        num_classes: Number of outputs.
    """
    check_size(input_shape, 8)
    inputs = keras.Input(input_shape)
    if max(input_shape[:2]) <= _SMALL:
        x = conv_norm(inputs, 64, 3)
    else:
        x = conv_norm(inputs, 64, 7, strides=2)
        x = keras.layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for filters, blocks, strides in _STAGES:
        for block in range(blocks):
            x = _bottleneck(x, filters, strides if block == 0 else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes), name="resnet50")


def _bottleneck(x, filters: int, strides: int):
    shortcut = x
    if strides > 1 or x.shape[-1] != 4 * filters:
        shortcut = conv_norm(x, 4 * filters, 1, strides=strides, relu=False)
    x = conv_norm(x, filters, 1)
    x = conv_norm(x, filters, 3, strides=strides)
    x = conv_norm(x, 4 * filters, 1, relu=False, zero_init=True)
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))
