"""Seeds, and the hash from which every random choice about an example is drawn.

Everything random about the data is a pure function of (seed, epoch, example,
purpose): nothing to save, the same on any number of workers or threads, and the
same inside and outside XLA, which TensorFlow's own stateless generators are not.
"""

from __future__ import annotations

import zlib

from tfaccel.fields import Count
from tfaccel.lazy import keras, tf
from tfaccel.log import logger


def set_seed(*, seed: Count = 0, deterministic: bool = False) -> int:
    """Seeds Python, NumPy and TensorFlow (weights and Dropout); returns the seed.

    Args:
        seed: Any whole number from 0.
        deterministic: Use deterministic kernels only, which costs speed: on the
            same devices, a run repeats bit for bit. On GPUs an operation that has
            no such kernel raises, and other GPUs or versions give other bits.
    """
    if deterministic:
        tf.config.experimental.enable_op_determinism()
        logger.info(
            "deterministic: on; bit-equal on the same CPUs; on GPUs only for the same "
            "model of GPU, driver and library versions"
        )
    keras.utils.set_random_seed(seed % 2**32)
    return seed


def mix(*words) -> tf.Tensor:
    """Hashes whole numbers to one well-mixed uint32, elementwise.

    Each word goes through the finalizer "lowbias32" (Wellons, "Prospecting for
    Hash Functions", 2018) before the next is added, so that neighbouring seeds,
    epochs or examples share nothing.

    Args:
        *words: Integer tensors, of which the low 32 bits count, or Python
            integers, or lists of them below 2**32; they broadcast together.

    Returns:
        uint32 tensor of the broadcast shape.
    """
    state = tf.constant(0x9E3779B9, tf.uint32)
    for word in words:
        for half in _halves(word):
            state = _finalize((state ^ half) + tf.constant(0x9E3779B9, tf.uint32))
    return state


def purpose(name: str) -> int:
    """Returns the word that stands for a named purpose, such as "flip"."""
    return zlib.crc32(name.encode())


def below(bits, bound) -> tf.Tensor:
    """Maps uint32 random bits to int32 from 0 to `bound` - 1, uniformly.

    Uses the high half of a 32 x 32 bit product (Lemire, "Fast Random Integer
    Generation in an Interval", 2019); the bias is under bound / 2**32.
    """
    wide = tf.cast(bits, tf.uint64) * tf.cast(bound, tf.uint64)
    return tf.cast(tf.bitwise.right_shift(wide, tf.constant(32, tf.uint64)), tf.int32)


def draw(keys, name: str, bound) -> tf.Tensor:
    """Returns a number from 0 to `bound` - 1 for each key and this purpose, int32."""
    return below(mix(keys, purpose(name)), bound)


def between(bits, low: float, high: float) -> tf.Tensor:
    """Maps uint32 random bits to float64 from `low` up to `high`, uniformly."""
    return low + (high - low) * (tf.cast(bits, tf.float64) * 2.0**-32)


def example_keys(seed: int, epochs, examples) -> tf.Tensor:
    """Returns the key from which all that happens to an example is drawn.

    A key is a hash but for its lowest bit, which is random in an example's first
    epoch and turns over with every epoch: what alternates, such as a flip, reads it.

    Args:
        seed: The run's seed.
        epochs: The epoch of each example, an integer tensor [n].
        examples: The number of each example, an integer tensor [n].

    Returns:
        uint32 [n].
    """
    one = tf.constant(1, tf.uint32)
    turn = mix(seed, examples, purpose("turn")) ^ tf.cast(epochs, tf.uint32)
    return (mix(seed, epochs, examples) & ~one) | (turn & one)


def _halves(word):
    if isinstance(word, int):
        low, high = word & 0xFFFFFFFF, word >> 32 & 0xFFFFFFFF
        low = tf.constant(low, tf.uint32)
        return (low, tf.constant(high, tf.uint32)) if high else (low,)
    if isinstance(word, (list, tuple)):
        return (tf.constant(word, tf.uint32),)
    return (tf.cast(word, tf.uint32),)


def _finalize(x):
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32))
        x *= tf.constant(factor, tf.uint32)
    return x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))
