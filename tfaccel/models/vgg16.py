"""VGG-16 as it trains from scratch: batch normalisation and a small head."""

from __future__ import annotations

from tfaccel.lazy import keras
from tfaccel.models.layers import check_size, conv_norm, logits

_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(*, input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Returns a VGG-16 with logits as output.

    Simonyan and Zisserman, "Very Deep Convolutional Networks" (2014), with
    batch normalisation after each convolution and global average pooling in
    place of the two 4,096-wide layers.

    Args:
        input_shape: (height, width, channels), at least 32 pixels a side.
        num_classes: Number of outputs.
    """
    check_size(input_shape, 32)
    inputs = x = keras.Input(input_shape)
    for filters, convolutions in _BLOCKS:
        for _ in range(convolutions):
            x = conv_norm(x, filters, 3)
        x = keras.layers.MaxPooling2D(2)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes), name="vgg16")
