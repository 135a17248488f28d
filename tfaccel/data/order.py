"""Which example comes when: a stateless permutation for every epoch."""

from __future__ import annotations

from tfaccel import randomness
from tfaccel.lazy import tf

# RandomIndexShuffle's key is three words; each is hashed, because its own key
# schedule uses few of their bits.
_KEY_WORDS = tuple(randomness.purpose(f"order {i}") for i in range(3))
# The public tf.random.experimental.index_shuffle fixes 4 rounds, with which the
# orders of two epochs correlate.
_ROUNDS = 8


def examples_at(places, num_examples: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the epoch and the example at places of the endless training stream.

    Place p lies in epoch p // num_examples; each epoch is a permutation of all
    examples, so a batch may straddle two epochs and nothing is ever left out.

    Args:
        places: int64 tensor [n], counted from the start of training.
        num_examples: Examples in an epoch.
        seed: The run's seed.

    Returns:
        (epochs int64 [n], examples int64 [n]).

    Example:
        >>> _, examples = examples_at(tf.range(5, dtype=tf.int64), 5, seed=0)
        >>> sorted(examples.numpy().tolist())
        [0, 1, 2, 3, 4]
    """
    places = tf.convert_to_tensor(places, tf.int64)
    epochs = places // num_examples
    within = places % num_examples
    examples = tf.raw_ops.RandomIndexShuffle(
        index=within,
        seed=randomness.mix(seed, epochs[:, None], _KEY_WORDS),
        max_index=tf.constant(num_examples - 1, tf.int64),
        rounds=_ROUNDS,
    )
    return epochs, examples
