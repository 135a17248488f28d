"""Small data and models that several tests share."""

import keras
import numpy as np
import tensorflow as tf

from tfaccel import distribution
from tfaccel.data.pipeline import EvaluationData, TrainingData
from tfaccel.data.source import from_arrays


def source(count=48, size=8, classes=4, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return from_arrays(images, random.integers(0, classes, count), tuple("abcd"[:classes]))


def unit(images):
    return tf.cast(images, tf.float32) / 255


def training(batch=8, seed=0, **kwargs):
    return TrainingData(source(**kwargs), seed, batch, None, unit)


def evaluation(batch=8, **kwargs):
    return EvaluationData(source(**kwargs), batch, unit)


def model(*, norm=None, dropout=0.0, optimizer=None, policy="float32", seed=1, metrics=()):
    """A convolution, an optional normalisation and Dropout, and a regularised Dense."""
    keras.utils.set_random_seed(seed)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(6, 3, strides=2, name="conv")(inputs)
    if norm is not None:
        x = norm(x)
    x = keras.layers.ReLU()(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.Flatten()(x)
    penalty = keras.regularizers.L2(1e-2)
    x = keras.layers.Dense(4, dtype="float32", name="dense", kernel_regularizer=penalty)(x)
    keras.config.set_dtype_policy(before)
    built = keras.Model(inputs, x)
    optimizer = optimizer or keras.optimizers.SGD(0.05, momentum=0.9)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    built.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy"), *metrics],
        auto_scale_loss=False,
    )
    return built


def strategy(replicas):
    """One device, or a MirroredStrategy over logical CPUs."""
    if replicas == 1:
        return tf.distribute.get_strategy()
    return distribution.build(strategy="mirrored", logical_cpus=replicas)


def iterator(data, strategy, first_step=0):
    if strategy.num_replicas_in_sync == 1:
        return iter(data.dataset(first_step))
    return iter(
        strategy.distribute_datasets_from_function(lambda c: data.dataset(first_step, c))
    )


def weights(built):
    return [np.array(value) for value in built.get_weights()]


def photos(count, size):
    """Parts of two photographs that come with scikit-learn, uint8 [n, size, size, 3]."""
    from sklearn.datasets import load_sample_image

    whole = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    random = np.random.default_rng(0)
    parts = []
    for number in range(count):
        image = whole[number % 2]
        top, left = (random.integers(0, length - size) for length in image.shape[:2])
        parts.append(image[top : top + size, left : left + size])
    return np.stack(parts)


def assert_same_wherever_it_runs(augment, images, keys):
    """Eager, in a graph, under XLA and in tf.data, together and alone."""
    images = tf.constant(images)
    eager = augment(images, keys).numpy()
    assert eager.shape == images.shape
    assert eager.dtype == np.uint8
    plain, compiled = (
        tf.function(augment, autograph=False, jit_compile=jit)(images, keys)
        for jit in (False, True)
    )
    np.testing.assert_array_equal(plain, eager)
    np.testing.assert_array_equal(compiled, eager)
    batches = tf.data.Dataset.from_tensor_slices((images, keys)).batch(5).map(augment)
    in_parts = np.concatenate([*batches.as_numpy_iterator()])
    np.testing.assert_array_equal(in_parts, eager)
    return eager
