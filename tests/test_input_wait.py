"""How long steps waited for their batch."""

import time

import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfaccel import input_wait, step


@pytest.mark.parametrize(
    ("asked", "came", "end", "waited"),
    [
        # A step takes 1 s and asks when it is done; a batch takes half a second.
        ([0.0, 1.5, 3.0], [0.5, 2.0, 3.5], 4.5, 1.5),
        # Batches are there.
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], 3.0, 0.0),
        # A GPU takes 1 s a step, a batch 0.9 s: it waits for the first one only,
        # although the host, which runs ahead, waits for all.
        ([0.0, 0.9, 1.8], [0.9, 1.8, 2.7], 3.9, 0.9),
        # A GPU takes 0.1 s a step, a batch 1 s.
        ([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], 3.1, 2.8),
        ([5.0], [5.5], 6.0, 0.5),
    ],
)
def test_the_wait_of_one_call(asked, came, end, waited):
    times = np.stack([asked, came], axis=1)
    assert input_wait.seconds(times, end) == pytest.approx(waited)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_step_tells_when_it_asked_and_when_the_batch_came(replicas):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model()

    def slowly(x, y):
        shape = x.shape
        (x,) = tf.numpy_function(lambda x: [time.sleep(0.05), x][1:], [x], [tf.float32])
        return tf.ensure_shape(x, shape), y

    data = tiny.training()
    # Nothing is fetched ahead, so each batch costs the step the whole sleep.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    iterator = iter(data.dataset().map(slowly).with_options(options))
    if replicas > 1:
        iterator = iter(
            strategy.distribute_datasets_from_function(lambda c: data.dataset(0, c))
        )
    start = time.time()
    times = step.TrainingStep(model, strategy)(iterator, 3).times.numpy()
    assert times.shape == (3, 2)
    flat = times.reshape(-1)
    assert (np.diff(flat) >= 0).all()
    # Clocks tell microseconds.
    assert start - 1e-3 <= flat[0] and flat[-1] <= time.time() + 1e-3
    if replicas == 1:
        assert (times[:, 1] - times[:, 0] >= 0.049).all()
