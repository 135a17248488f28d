"""The strategy that places a model on several devices, of one host or of several."""

from __future__ import annotations

import itertools
import os
from typing import Literal

from tfaccel import cluster as cluster_lib
from tfaccel import fields, gpu_share, horovod, multiworker, slurm
from tfaccel.cluster import Cluster
from tfaccel.errors import UserError
from tfaccel.fields import Count, NonNegative, Positive
from tfaccel.lazy import tf
from tfaccel.log import logger

Strategy = Literal["auto", "none", "mirrored", "multiworker", "horovod"]
Communication = Literal["auto", "nccl", "ring"]
AllReduce = Literal["auto", "nccl", "hierarchical_copy", "reduction_to_one_device"]
# Not from 0, where the user's own strategies start.
_COLLECTIVE_KEYS = itertools.count(100_000, 100_000)
# Which strategies heed a field; "auto" may become any of them.
_HEEDED_BY = {
    "logical_cpus": ("mirrored", "multiworker"),
    # Horovod's workers have one each.
    "gpus": ("mirrored", "multiworker"),
    "communication": ("multiworker",),
    "all_reduce": ("mirrored",),
    "bytes_per_pack": ("mirrored", "multiworker"),
    "collective_timeout": ("multiworker",),
    "port": ("multiworker",),
}


def check(
    *,
    strategy: Strategy,
    logical_cpus: Count,
    gpus: Count,
    communication: Communication,
    all_reduce: AllReduce,
    bytes_per_pack: Count,
    timeout: Positive,
    collective_timeout: NonNegative,
    port: Count,
) -> None:
    """Refuses combinations of `build`'s arguments that cannot work."""
    del timeout
    fields.check(Strategy, strategy, "distribution.strategy")
    fields.check(Communication, communication, "distribution.communication")
    fields.check(AllReduce, all_reduce, "distribution.all_reduce")
    if strategy == "none" and logical_cpus > 1:
        raise UserError(
            f"received distribution.strategy=none with distribution.logical_cpus="
            f"{logical_cpus}: one device cannot be several. Use mirrored, or leave "
            "logical_cpus out."
        )
    given = _given(
        logical_cpus=logical_cpus,
        gpus=gpus,
        communication=communication,
        all_reduce=all_reduce,
        bytes_per_pack=bytes_per_pack,
        collective_timeout=collective_timeout,
        port=port,
    )
    for name, value in given.items():
        if strategy not in ("auto", *_HEEDED_BY[name]):
            raise UserError(
                f"received distribution.{name}={value} with distribution.strategy={strategy}: "
                f"only {' and '.join(_HEEDED_BY[name])} can heed it. Leave {name} out."
            )
    if logical_cpus and gpus:
        raise UserError(
            f"received distribution.logical_cpus={logical_cpus} with distribution.gpus={gpus}, "
            "expected one of them: replicas are on CPUs or on GPUs."
        )
    if bytes_per_pack and all_reduce not in ("auto", "nccl"):
        raise UserError(
            f"received distribution.bytes_per_pack={bytes_per_pack} with distribution."
            f"all_reduce={all_reduce}, which reduces tensor by tensor: leave one out."
        )
    if port > 65_000 or 0 < port < 1024:
        raise UserError(f"received distribution.port={port}, expected 0 or 1024 to 65000.")
    check_workers(strategy, _workers(strategy, port))


def build(
    *,
    strategy: Strategy = "auto",
    logical_cpus: Count = 0,
    gpus: Count = 0,
    communication: Communication = "auto",
    all_reduce: AllReduce = "auto",
    bytes_per_pack: Count = 0,
    timeout: Positive = 120.0,
    collective_timeout: NonNegative = 0.0,
    port: Count = 0,
) -> tf.distribute.Strategy:
    """Returns the strategy, first thing after `devices.configure`.

    Args:
        strategy: "none" (one device), "mirrored" (all GPUs of this host, or its
            logical CPUs), "multiworker" (all workers of a cluster, see
            `tfaccel.cluster`), "horovod" (likewise, see `tfaccel.horovod`) or
            "auto": the workers if there are several, else all GPUs.
        logical_cpus: Split the CPU into this many logical devices, to try out
            several replicas where there is no GPU; 0 leaves it whole. Of each
            worker, where there are several.
        gpus: How many GPUs this process takes; 0 takes all, or its share of them
            where several workers are on one host.
        communication: How workers reduce: "nccl" (GPUs), "ring" (gRPC) or "auto".
        all_reduce: How "mirrored" reduces; "auto" is NCCL on GPUs, a ring on CPUs.
        bytes_per_pack: Reduce gradients in packs of about this size, which may
            overlap with computing; 0 is one pack.
        timeout: Seconds to wait for all workers at the start.
        collective_timeout: Seconds that one reduction may take; 0 sets no limit. For
            finding out what hangs: it costs a thread a reduction.
        port: First port of each host's workers, where the scheduler names hosts only;
            0 derives one from the job's number.

    Raises:
        UserError: If a combination cannot work, a device or a worker is missing, or
            TensorFlow has started already.

    Example:
        with tfaccel.distribution.build(strategy="mirrored").scope():
            model = keras.applications.ResNet50()
            model.compile("sgd", "sparse_categorical_crossentropy")
    """
    check(
        strategy=strategy,
        logical_cpus=logical_cpus,
        gpus=gpus,
        communication=communication,
        all_reduce=all_reduce,
        bytes_per_pack=bytes_per_pack,
        timeout=timeout,
        collective_timeout=collective_timeout,
        port=port,
    )
    workers = _workers(strategy, port)
    chosen = choose(strategy, workers)
    as_asked = "auto" if strategy == "auto" else "as asked"
    given = _given(
        gpus=gpus,
        communication=communication,
        all_reduce=all_reduce,
        bytes_per_pack=bytes_per_pack,
        collective_timeout=collective_timeout,
        port=port,
    )
    if chosen == "horovod":
        _say_unused(given, "horovod")
        return _horovod(as_asked)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=bytes_per_pack,
        timeout_seconds=collective_timeout or None,
        implementation=communication.upper(),
    )
    if chosen == "multiworker":
        _say_unused(given, "multiworker")
        logger.info("cluster: %s", workers)
        return _multiworker(workers, logical_cpus, gpus, options, timeout, as_asked)
    built = _on_this_host(strategy, logical_cpus, gpus, all_reduce, options, as_asked)
    _say_unused(given, "none" if built is tf.distribute.get_strategy() else "mirrored")
    return built


def check_workers(strategy: Strategy, workers: Cluster | None) -> None:
    """Refuses a strategy that does not fit the workers there are.

    Args:
        strategy: As for `build`.
        workers: The cluster that the environment describes, if any.
    """
    if strategy in ("none", "mirrored") and workers and len(workers.workers) > 1:
        raise UserError(
            f"received distribution.strategy={strategy}, but {workers.source} names "
            f"{len(workers.workers)} workers, each of which would train alone: use "
            "multiworker or auto, or start one process."
        )
    if strategy == "multiworker" and workers is None:
        reason = slurm.forgotten_srun(os.environ) or (
            "nothing names the workers: start them with python -m tfaccel.launch --workers=2 "
            "-- ..., with srun, or set TF_CONFIG (docs/cluster.md)."
        )
        raise UserError(f"received distribution.strategy=multiworker, but {reason}")


def choose(strategy: Strategy, workers: Cluster | None) -> Strategy:
    """Returns what "auto" stands for: "multiworker" or "horovod" if there are several.

    Args:
        strategy: As for `build`.
        workers: The cluster that the environment describes, if any.
    """
    if strategy != "auto":
        return strategy
    if horovod.launched_workers() > 1:
        return "horovod"
    if workers is not None and len(workers.workers) > 1:
        return "multiworker"
    forgotten = slurm.forgotten_srun(os.environ)
    if forgotten and workers is None:
        logger.warning("%s This process trains alone.", forgotten)
    return strategy


def worker(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Returns this worker's place, from 0, and how many workers there are.

    Worker 0 is the chief, which writes for all.

    Args:
        strategy: What `build` has returned, or any of TensorFlow's.
    """
    if horovod.active():
        return horovod.rank(), horovod.size()
    resolver = strategy.cluster_resolver
    if resolver is None:
        return 0, 1
    return resolver.task_id, resolver.cluster_spec().num_tasks("worker")


def communication_options(
    strategy: tf.distribute.Strategy,
) -> tf.distribute.experimental.CommunicationOptions | None:
    """Returns what `build` was told about communication, for `all_reduce(options=...)`.

    MirroredStrategy has no such argument of its own; None for others' strategies.
    """
    return getattr(strategy, "communication_options", None)


def _workers(strategy: Strategy, port: int) -> Cluster | None:
    # Horovod has its own ways to find the others.
    return None if strategy == "horovod" else cluster_lib.discover(port=port)


def _on_this_host(strategy, logical_cpus, gpus, all_reduce, options, as_asked):
    if logical_cpus > 1:
        _split_cpu(logical_cpus)
    devices = tf.config.list_logical_devices("GPU")
    if logical_cpus or not devices:
        gpu_share.share(0, gpus)
        devices = tf.config.list_logical_devices("CPU")[: max(1, logical_cpus)]
    else:
        devices = [devices[index] for index in gpu_share.share(len(devices), gpus)]
    if strategy == "none" or (strategy == "auto" and len(devices) == 1):
        logger.info("distribution: one device (%s)", _why(devices[:1], as_asked))
        return tf.distribute.get_strategy()
    operations = _cross_device_ops(all_reduce, devices)
    logger.info("distribution: mirrored over %s", _why(devices, as_asked))
    return _mirrored([device.name for device in devices], operations, options)


def _cross_device_ops(all_reduce: AllReduce, devices):
    if all_reduce == "nccl" and devices[0].device_type != "GPU":
        raise UserError(
            f"received distribution.all_reduce=nccl with {len(devices)} CPU device(s): NCCL "
            "reduces between GPUs only. Use auto."
        )
    if all_reduce == "hierarchical_copy" and len(devices) % 2:
        # TensorFlow halves the devices, and would leave the odd one's gradients out.
        raise UserError(
            f"received distribution.all_reduce=hierarchical_copy with {len(devices)} "
            "device(s), expected an even number: it reduces in two halves. Use auto."
        )
    if all_reduce == "hierarchical_copy":
        return tf.distribute.HierarchicalCopyAllReduce()
    if all_reduce == "reduction_to_one_device":
        return tf.distribute.ReductionToOneDevice()
    # TensorFlow's own choice: NCCL if all are GPUs, a ring if all are CPUs.
    return None


def _mirrored(devices: list[str], operations, options) -> tf.distribute.MirroredStrategy:
    """Returns a strategy whose collectives are its own.

    PRIVATE TENSORFLOW API (2.21): MirroredStrategy._collective_key_base. All
    strategies of a process number their collectives from the same start, so a
    second one (a notebook cell run again) would join the first one's and fail
    with "Shape mismatch in the collective instance". tests/test_distribution.py
    tells when TensorFlow changes.
    """
    own = {
        "_collective_key_base": next(_COLLECTIVE_KEYS),
        "communication_options": tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=options.bytes_per_pack
        ),
    }
    strategy_class = type("MirroredStrategy", (tf.distribute.MirroredStrategy,), own)
    return strategy_class(devices, cross_device_ops=operations)


def _multiworker(workers: Cluster, logical_cpus, gpus, options, timeout, as_asked):
    multiworker.check_order()
    if logical_cpus:
        # As on one host: CPUs were asked for, even where there are GPUs.
        tf.config.set_visible_devices([], "GPU")
        _split_cpu(logical_cpus)
    own = gpu_share.take(
        gpus, workers.local_index, workers.local_count, shared_out=workers.gpus_shared_out
    )
    implementation = options.implementation.value.lower()
    if implementation == "nccl" and not own:
        raise UserError(
            "received distribution.communication=nccl, but this worker has no GPU: NCCL "
            "reduces between GPUs only. Use auto or ring."
        )
    cpus = max(1, logical_cpus)
    strategy = multiworker.build(workers, options, timeout=timeout, logical_cpus=cpus)
    strategy.communication_options = options
    logger.info(
        "distribution: %d workers x %s, communication %s, %s",
        len(workers.workers),
        f"{own} GPU" if own else f"{cpus} CPU",
        implementation,
        as_asked,
    )
    return strategy


def _horovod(as_asked: str):
    horovod.start()
    launched = cluster_lib.LAUNCHED in os.environ
    if tf.config.get_visible_devices("GPU"):
        gpu_share.take(1, horovod.local_rank(), horovod.local_size(), shared_out=launched)
    logger.info(
        "distribution: Horovod, worker %d of %d, %s, %s",
        horovod.rank(),
        horovod.size(),
        "1 GPU" if tf.config.get_visible_devices("GPU") else "1 CPU",
        as_asked,
    )
    return tf.distribute.get_strategy()


def _split_cpu(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    part = tf.config.LogicalDeviceConfiguration()
    try:
        tf.config.set_logical_device_configuration(cpu, [part] * count)
    except RuntimeError as error:
        present = len(tf.config.list_logical_devices("CPU"))
        if present < count:
            raise UserError(
                f"received distribution.logical_cpus={count}, but TensorFlow has "
                f"already started with {present}: build the strategy before any "
                "operation, model or dataset is created."
            ) from error


def _given(**fields_given) -> dict[str, object]:
    """Returns the fields that ask for something, which their defaults do not."""
    return {
        name: value
        for name, value in fields_given.items()
        if value not in (0, "auto") and not (name == "logical_cpus" and value == 1)
    }


def _say_unused(given: dict[str, object], chosen: str) -> None:
    """Says which fields have nothing to do with what "auto" has chosen."""
    unused = {n: v for n, v in given.items() if chosen not in _HEEDED_BY[n]}
    if unused:
        logger.warning(
            "distribution: no use for %s (that is for %s)",
            ", ".join(f"{name}={value}" for name, value in unused.items()),
            " and ".join(sorted({kind for name in unused for kind in _HEEDED_BY[name]})),
        )


def _why(devices: list, as_asked: str) -> str:
    return f"{len(devices)} {devices[0].device_type}, {as_asked}"
