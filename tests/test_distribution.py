import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel import distribution
from tfaccel.errors import UserError


@pytest.fixture
def with_gpus(monkeypatch):
    """Makes TensorFlow list GPUs, and notes what a strategy would be made of."""
    real = tf.config.list_logical_devices
    mirrored = []

    def use(count):
        gpus = [tf.config.LogicalDevice(f"/device:GPU:{i}", "GPU") for i in range(count)]
        monkeypatch.setattr(
            tf.config,
            "list_logical_devices",
            lambda kind: gpus if kind == "GPU" else real(kind),
        )
        monkeypatch.setattr(distribution, "_mirrored", lambda names: mirrored.append(names))
        return mirrored

    return use


def replica_sums(strategy, values):
    """What an all-reduce over the replicas of `values` gives on each of them."""

    @tf.function
    def run():
        context = tf.distribute.get_replica_context()
        own = tf.constant(values) * tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    results = strategy.experimental_local_results(strategy.run(run))
    return [result.numpy().tolist() for result in results]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "distribution: one device (1 CPU, auto)"),
        ({"strategy": "auto"}, "distribution: one device (1 CPU, auto)"),
        ({"strategy": "none"}, "distribution: one device (1 CPU, as asked)"),
        ({"strategy": "auto", "logical_cpus": 1}, "distribution: one device (1 CPU, auto)"),
        ({"strategy": "none", "logical_cpus": 1}, "distribution: one device (1 CPU, as asked)"),
    ],
)
def test_one_device_needs_no_strategy(arguments, line, log):
    strategy = distribution.build(**arguments)
    assert strategy is tf.distribute.get_strategy()
    assert strategy.num_replicas_in_sync == 1
    assert log.messages == [line]


@pytest.mark.parametrize(
    ("arguments", "replicas", "line"),
    [
        ({"strategy": "mirrored"}, 1, "distribution: mirrored over 1 CPU, as asked"),
        ({"strategy": "mirrored", "logical_cpus": 2}, 2,
         "distribution: mirrored over 2 CPU, as asked"),
        ({"strategy": "mirrored", "logical_cpus": 4}, 4,
         "distribution: mirrored over 4 CPU, as asked"),
        ({"logical_cpus": 2}, 2, "distribution: mirrored over 2 CPU, auto"),
    ],
)  # fmt: skip
def test_mirrored_has_a_replica_on_each_logical_cpu(arguments, replicas, line, log):
    strategy = distribution.build(**arguments)
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == replicas
    assert [name.rpartition("/device:")[2] for name in strategy.extended.worker_devices] == [
        f"CPU:{index}" for index in range(replicas)
    ]
    assert log.messages == [line]


@pytest.mark.parametrize("strategy", ["auto", "mirrored"])
def test_the_cpu_cannot_be_split_further_once_tensorflow_has_started(strategy):
    with pytest.raises(UserError) as error:
        distribution.build(strategy=strategy, logical_cpus=5)
    assert str(error.value) == (
        "received distribution.logical_cpus=5, but TensorFlow has already started with 4: "
        "build the strategy before any operation, model or dataset is created."
    )


def test_in_a_fresh_process(fresh_python, tmp_path):
    code = f"""
import tensorflow as tf
from tfaccel import distribution
{inspect.getsource(replica_sums)}
ours = distribution.build(strategy="mirrored", logical_cpus=2)
print(ours.num_replicas_in_sync)
print(replica_sums(ours, [1.0, 2.0]))
own = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(replica_sums(own, [1.0, 2.0, 3.0]))
"""
    done = fresh_python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    split, first, own = done.stdout.splitlines()
    # The CPU is split before TensorFlow starts.
    assert (split, first) == ("2", "[[3.0, 6.0], [3.0, 6.0]]")
    # A strategy of the user's own does not meet ours.
    assert own == "[[3.0, 6.0, 9.0], [3.0, 6.0, 9.0]]"


@pytest.mark.parametrize(
    ("arguments", "devices", "line"),
    [
        ({}, ["/device:GPU:0", "/device:GPU:1"], "distribution: mirrored over 2 GPU, auto"),
        ({"strategy": "mirrored"}, ["/device:GPU:0", "/device:GPU:1"],
         "distribution: mirrored over 2 GPU, as asked"),
        # To try replicas out, even where there are GPUs.
        ({"logical_cpus": 2}, ["/device:CPU:0", "/device:CPU:1"],
         "distribution: mirrored over 2 CPU, auto"),
    ],
)  # fmt: skip
def test_several_gpus_are_mirrored(arguments, devices, line, with_gpus, log):
    mirrored = with_gpus(2)
    distribution.build(**arguments)
    assert mirrored == [devices]
    assert log.messages == [line]


@pytest.mark.parametrize(
    ("count", "arguments", "line"),
    [
        (1, {}, "distribution: one device (1 GPU, auto)"),
        (1, {"strategy": "none"}, "distribution: one device (1 GPU, as asked)"),
        # One of them, and the line says so.
        (2, {"strategy": "none"}, "distribution: one device (1 GPU, as asked)"),
    ],
)
def test_one_gpu_needs_no_strategy(count, arguments, line, with_gpus, log):
    mirrored = with_gpus(count)
    assert distribution.build(**arguments) is tf.distribute.get_strategy()
    assert mirrored == []
    assert log.messages == [line]


@pytest.mark.parametrize("strategy", ["multiworker", "horovod"])
def test_what_is_not_built_yet_is_refused(strategy):
    with pytest.raises(UserError) as error:
        distribution.build(strategy=strategy)
    assert str(error.value) == (
        f"received distribution.strategy={strategy}: not yet. Use none, mirrored or auto; "
        "several workers come with a later release."
    )


def test_one_device_cannot_be_several():
    with pytest.raises(UserError) as error:
        distribution.build(strategy="none", logical_cpus=2)
    assert str(error.value) == (
        "received distribution.strategy=none with distribution.logical_cpus=2: one device "
        "cannot be several. Use mirrored, or leave logical_cpus out."
    )


def test_an_unknown_strategy_is_refused():
    with pytest.raises(UserError) as error:
        distribution.build(strategy="mirored")
    assert str(error.value) == (
        "received distribution.strategy='mirored', expected one of auto, none, mirrored, "
        "multiworker, horovod. Did you mean mirrored?"
    )


@pytest.mark.parametrize("replicas", [2, 4])
def test_variables_are_mirrored(replicas):
    strategy = distribution.build(strategy="mirrored", logical_cpus=replicas)
    with strategy.scope():
        layer = keras.layers.Dense(3)
        layer.build((None, 5))
    copies = strategy.experimental_local_results(layer.kernel.value)
    assert len(copies) == replicas
    for copy in copies[1:]:
        np.testing.assert_array_equal(copy.numpy(), copies[0].numpy())


def test_strategies_of_one_process_do_not_meet():
    # A notebook cell that is run again, with another batch or model. TensorFlow numbers the
    # collectives of each strategy from the same start, so the second would join the first's.
    first, second = (distribution.build(strategy="mirrored", logical_cpus=2) for _ in range(2))
    assert replica_sums(first, [1.0, 2.0, 3.0]) == 2 * [[3.0, 6.0, 9.0]]
    assert replica_sums(second, [1.0, 2.0]) == 2 * [[3.0, 6.0]]
    assert replica_sums(first, [5.0]) == 2 * [[15.0]]


def test_the_private_name_of_tensorflow_is_still_there():
    # TensorFlow 2.21; if this fails, see tfaccel.distribution._mirrored.
    assert tf.distribute.MirroredStrategy._collective_key_base == 0
