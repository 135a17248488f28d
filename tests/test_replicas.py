import platform
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfaccel import replicas, step
from tfaccel.errors import UserError
from tfaccel.models import batch_norm


def test_one_device_agrees_with_itself():
    alone = replicas.of(None)
    assert (alone.count, alone.workers, alone.worker, alone.chief) == (1, 1, 0, True)
    assert alone.agree(3, -1.5) == [3, -1.5]
    alone.check_alike(2.0, "anything")


PAGE_FAULTS = """
import resource
import numpy as np
import tiny
from tfaccel import replicas

def faults():  # of 50 blocks of 2 MiB, each freed before the next; 512 pages each
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

home = replicas.of(tiny.strategy(2))
dataset = home.dataset(lambda shard: tiny.training().dataset(0, shard))
iter(dataset)
faults()
plain = faults()
home.iterator(dataset)
faults()
print(plain, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept_after_an_iterator_is_made(fresh_python):
    done = fresh_python("-c", PAGE_FAULTS, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr[-2000:]
    plain, ours = map(int, done.stdout.split()[-2:])
    # If this fails, TensorFlow has mended it: Replicas.iterator can go.
    assert plain >= 50
    assert ours < 50


@pytest.mark.parametrize("count", [2, 4])
def test_sums_and_places_of_mirrored_replicas(count):
    home = replicas.of(tiny.strategy(count))
    with home.scope():
        sums = home.run(tf.function(lambda: home.sum([tf.cast(home.index(), tf.float32)])[0]))
    for value in home.strategy.experimental_local_results(sums):
        assert float(value) == sum(range(count))


def test_gathered_tensors_stand_in_the_order_of_the_replicas():
    home = replicas.of(tiny.strategy(4))
    with home.scope():
        parts = home.run(tf.function(lambda: tf.fill([2], home.index())))
        assert home.gather(parts).numpy().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_bfloat16_reduction_rounds_the_gradients_only():
    def trained(reduce_dtype):
        strategy = tiny.strategy(2)
        with strategy.scope():
            model = tiny.model(optimizer=keras.optimizers.SGD(1.0))
        before = tiny.weights(model)
        options = step.Options(reduce_dtype=reduce_dtype)
        step.TrainingStep(model, strategy, options)(tiny.iterator(tiny.training(), strategy), 1)
        return [old - new for old, new in zip(before, tiny.weights(model), strict=True)]

    exact, rounded = trained("float32"), trained("bfloat16")
    for one, other in zip(exact, rounded, strict=True):
        assert np.abs(one - other).max() > 0
        # Two parts and their sum are rounded to 8 bits each.
        np.testing.assert_allclose(other, one, rtol=0, atol=3 * 2**-8 * np.abs(one).max())


def test_synchronised_batch_norm_is_refused_where_it_cannot_run():
    strategy = tiny.strategy(2)
    with strategy.scope():
        model = tiny.model(norm=keras.layers.BatchNormalization())
    batch_norm.build(model, synchronized=True)
    with pytest.raises(UserError, match="jit on CPU devices"):
        step.TrainingStep(model, strategy, step.Options(jit=True))
    with pytest.raises(UserError, match="accumulation=2, expected 1"):
        step.TrainingStep(model, strategy, step.Options(accumulation=2))
    step.TrainingStep(model, strategy)


def test_synchronising_looks_into_nested_models_and_refuses_those_without():
    inner = tiny.model(norm=keras.layers.BatchNormalization())
    outer = keras.Sequential([keras.Input((8, 8, 3)), inner])
    batch_norm.build(outer, synchronized=True)
    (layer,) = [x for x in inner.layers if isinstance(x, keras.layers.BatchNormalization)]
    assert layer.synchronized
    with pytest.raises(UserError, match="has no BatchNormalization layer"):
        batch_norm.build(tiny.model(), synchronized=True)
