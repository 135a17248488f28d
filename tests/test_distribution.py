import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel import distribution
from tfaccel.cluster import Cluster
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
        monkeypatch.setattr(distribution, "_mirrored", lambda names, *_: mirrored.append(names))
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


def test_one_device_cannot_be_several():
    with pytest.raises(UserError) as error:
        distribution.build(strategy="none", logical_cpus=2)
    assert str(error.value) == (
        "received distribution.strategy=none with distribution.logical_cpus=2: one device "
        "cannot be several. Use mirrored, or leave logical_cpus out."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"strategy": "mirrored", "communication": "ring"},
            "received distribution.communication=ring with distribution.strategy=mirrored: "
            "only multiworker can heed it. Leave communication out.",
        ),
        (
            {"strategy": "multiworker", "all_reduce": "hierarchical_copy"},
            "received distribution.all_reduce=hierarchical_copy with distribution.strategy="
            "multiworker: only mirrored can heed it. Leave all_reduce out.",
        ),
        (
            {"strategy": "horovod", "logical_cpus": 2},
            "received distribution.logical_cpus=2 with distribution.strategy=horovod: only "
            "mirrored and multiworker can heed it. Leave logical_cpus out.",
        ),
        (
            {"strategy": "horovod", "bytes_per_pack": 9},
            "received distribution.bytes_per_pack=9 with distribution.strategy=horovod: only "
            "mirrored and multiworker can heed it. Leave bytes_per_pack out.",
        ),
        (
            {"strategy": "none", "gpus": 1},
            "received distribution.gpus=1 with distribution.strategy=none: only mirrored and "
            "multiworker can heed it. Leave gpus out.",
        ),
        (
            {"gpus": 2, "logical_cpus": 2},
            "received distribution.logical_cpus=2 with distribution.gpus=2, expected one of "
            "them: replicas are on CPUs or on GPUs.",
        ),
        (
            {"all_reduce": "reduction_to_one_device", "bytes_per_pack": 9},
            "received distribution.bytes_per_pack=9 with distribution.all_reduce="
            "reduction_to_one_device, which reduces tensor by tensor: leave one out.",
        ),
        ({"port": 80}, "received distribution.port=80, expected 0 or 1024 to 65000."),
        (
            {"communication": "nccll"},
            "received distribution.communication='nccll', expected one of auto, nccl, ring. "
            "Did you mean nccl?",
        ),
        # Known only once the devices are.
        (
            {"strategy": "mirrored", "logical_cpus": 2, "all_reduce": "nccl"},
            "received distribution.all_reduce=nccl with 2 CPU device(s): NCCL reduces between "
            "GPUs only. Use auto.",
        ),
        (
            {"strategy": "mirrored", "logical_cpus": 3, "all_reduce": "hierarchical_copy"},
            "received distribution.all_reduce=hierarchical_copy with 3 device(s), expected an "
            "even number: it reduces in two halves. Use auto.",
        ),
        (
            {"strategy": "mirrored", "gpus": 2},
            "received distribution.gpus=2, but there are 0 (0 visible): ask for fewer, or make "
            "more visible (devices.visible, CUDA_VISIBLE_DEVICES).",
        ),
    ],
    ids=lambda value: (
        ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(UserError) as error:
        distribution.build(**arguments)
    assert str(error.value) == message


AB = Cluster(("a:1", "b:1"), 0, "Slurm job 7")
ALONE = Cluster(("a:1",), 0, "Slurm job 7")
IN_BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}


@pytest.fixture
def no_scheduler(monkeypatch):
    for name in ("HOROVOD_SIZE", "SLURM_JOB_ID", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize(
    ("strategy", "workers", "environment", "chosen"),
    [
        ("auto", None, {}, "auto"),
        ("auto", ALONE, {}, "auto"),
        ("auto", AB, {}, "multiworker"),
        ("auto", None, {"HOROVOD_SIZE": "2"}, "horovod"),
        ("auto", None, {"HOROVOD_SIZE": "1"}, "auto"),
        ("auto", None, IN_BATCH, "auto"),
        ("multiworker", AB, {}, "multiworker"),
        ("multiworker", ALONE, {}, "multiworker"),
        ("mirrored", ALONE, {}, "mirrored"),
        ("mirrored", None, IN_BATCH, "mirrored"),
        ("horovod", None, {}, "horovod"),
    ],
)
def test_the_choice(strategy, workers, environment, chosen, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert distribution.choose(strategy, workers) == chosen


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize("strategy", ["none", "mirrored"])
def test_workers_that_would_train_alone_are_refused(strategy):
    with pytest.raises(UserError) as error:
        distribution.check_workers(strategy, AB)
    assert str(error.value) == (
        f"received distribution.strategy={strategy}, but Slurm job 7 names 2 workers, each of "
        "which would train alone: use multiworker or auto, or start one process."
    )


SRUN = (
    "Slurm job 7 has 2 tasks, but this process was started without srun, which starts them "
    "all: write srun before python."
)


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (
            {},
            "nothing names the workers: start them with python -m tfaccel.launch --workers=2 "
            "-- ..., with srun, or set TF_CONFIG (docs/cluster.md).",
        ),
        (IN_BATCH, SRUN),
    ],
)
def test_workers_that_nothing_names(environment, reason, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as error:
        distribution.check_workers("multiworker", None)
    assert str(error.value) == f"received distribution.strategy=multiworker, but {reason}"


@pytest.mark.usefixtures("no_scheduler")
def test_auto_warns_of_a_forgotten_srun(monkeypatch, log):
    for name, value in IN_BATCH.items():
        monkeypatch.setenv(name, value)
    distribution.choose("auto", None)
    assert log.messages == [f"{SRUN} This process trains alone."]


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            {"communication": "ring"},
            "distribution: no use for communication=ring (that is for multiworker)",
        ),
        (
            {"logical_cpus": 2, "port": 3000},
            "distribution: no use for port=3000 (that is for multiworker)",
        ),
        (
            {"bytes_per_pack": 9, "all_reduce": "nccl"},
            "distribution: no use for all_reduce=nccl, bytes_per_pack=9 (that is for mirrored "
            "and multiworker)",
        ),
    ],
)
def test_what_auto_has_no_use_for_is_told(arguments, line, log):
    distribution.build(**arguments)
    assert [r.getMessage() for r in log.records if r.levelname == "WARNING"] == [line]


@pytest.mark.parametrize("strategy", ["none", "mirrored"])
def test_one_host_has_one_worker(strategy):
    assert distribution.worker(distribution.build(strategy=strategy)) == (0, 1)


def test_bad_tf_config_is_refused_whatever_the_strategy(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(UserError, match=r"received TF_CONFIG='\{', which is not JSON"):
        distribution.build(strategy="mirrored")


@pytest.mark.parametrize(
    ("all_reduce", "replicas"),
    [
        ("hierarchical_copy", 2),
        ("hierarchical_copy", 4),
        ("reduction_to_one_device", 2),
        ("reduction_to_one_device", 3),
        ("auto", 3),
    ],
)
def test_every_way_to_reduce_gives_the_sum(all_reduce, replicas):
    strategy = distribution.build(
        strategy="mirrored", logical_cpus=replicas, all_reduce=all_reduce
    )
    total = sum(range(1, replicas + 1))
    assert replica_sums(strategy, [1.0, 2.0]) == replicas * [[total, 2 * total]]


def test_hierarchical_copy_of_an_odd_number_is_still_wrong_in_tensorflow():
    # If this fails, TensorFlow has mended it: see tfaccel.distribution._cross_device_ops.
    operations = tf.distribute.HierarchicalCopyAllReduce()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], operations)
    assert replica_sums(strategy, [1.0]) != 3 * [[6.0]]


def test_mirrored_replicas_can_reduce_in_packs():
    strategy = distribution.build(strategy="mirrored", logical_cpus=2, bytes_per_pack=8)
    options = distribution.communication_options(strategy)
    assert options.bytes_per_pack == 8

    @tf.function
    def run():
        context = tf.distribute.get_replica_context()
        own = [tf.ones([4]) for _ in range(3)]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own, options=options)

    graph = tf.function(lambda: strategy.run(run)).get_concrete_function().graph
    assert len(collectives(graph)) == 2 * 3 == len({*collectives(graph)})
    assert distribution.communication_options(tf.distribute.get_strategy()) is None


def collectives(graph):
    """The names of a graph's reductions, with those of the functions it calls."""
    graphs = [graph, *(graph._get_function(name).graph for name in graph._functions)]
    return [
        f"{g.name}/{operation.name}"
        for g in graphs
        for operation in g.get_operations()
        if operation.type.startswith("CollectiveReduce")
    ]


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
