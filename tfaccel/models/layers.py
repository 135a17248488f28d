"""Blocks that several models share, on public Keras layers only."""

from __future__ import annotations

from tfaccel.lazy import keras


def check_size(input_shape: tuple[int, int, int], smallest: int) -> None:
    """Raises ValueError for images that pooling would shrink to nothing."""
    if min(input_shape[:2]) < smallest:
        raise ValueError(f"it needs at least {smallest} pixels a side.")


def conv_norm(x, filters: int, size: int, *, strides: int = 1, relu=True, zero_init=False):
    """Convolution, batch normalisation and, if asked, ReLU.

    Args:
        x: Keras tensor [n, height, width, channels].
        filters: Output channels.
        size: Height and width of the kernel.
        strides: Step of the convolution.
        relu: Whether a ReLU follows.
        zero_init: Start the normalisation's scale at 0, so that a residual
            branch begins as nothing (Goyal et al., "Accurate, Large Minibatch
            SGD", 2017).

    Returns:
        Keras tensor [n, height / strides, width / strides, filters].
    """
    x = keras.layers.Conv2D(
        filters,
        size,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)
    gamma = "zeros" if zero_init else "ones"
    x = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=gamma)(x)
    return keras.layers.ReLU()(x) if relu else x


def logits(x, num_classes: int, scale: float = 1.0):
    """The last Dense layer, in float32 whatever the policy."""
    x = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return x if scale == 1.0 else keras.layers.Rescaling(scale, dtype="float32")(x)
