"""TensorFlow's strategy for several workers, built so that it does not hang."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tfaccel
from tfaccel import rendezvous, termination
from tfaccel.cluster import Cluster, split_address
from tfaccel.errors import UserError
from tfaccel.lazy import tf
from tfaccel.log import logger

# A worker that is silent for this long counts as gone. Not less: on a machine under
# load a worker may be silent for seconds.
_HEARTBEAT_SECONDS = 60


def build(
    cluster: Cluster,
    options: tf.distribute.experimental.CommunicationOptions,
    *,
    timeout: float,
    logical_cpus: int = 1,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns the strategy once all workers are there.

    Args:
        cluster: The workers, and which this process is.
        options: How they communicate.
        timeout: Seconds to wait for all workers.
        logical_cpus: Replicas of each worker that has no GPU.

    Raises:
        UserError: If somebody does not come, the port is in use, or TensorFlow has
            started already.
    """
    gpus = len(tf.config.get_visible_devices("GPU"))
    devices = f"{gpus} GPU" if gpus else f"{logical_cpus} CPU"
    facts = {"tfaccel": tfaccel.__version__, "TensorFlow": tf.__version__}
    rendezvous.meet(cluster, timeout=timeout, facts={**facts, "devices": devices})
    logger.info("cluster: all %d workers are there", len(cluster.workers))
    _watch_workers(cluster, timeout)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.index,
        num_accelerators={"GPU": gpus} if gpus else {},
        rpc_layer="grpc",
    )
    try:
        # TensorFlow takes SIGTERM for itself, and then nothing ends a worker but SIGKILL.
        with termination.kept(), _on_cpus(0 if gpus else logical_cpus):
            return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    except tf.errors.OpError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        raise UserError(
            f"port {split_address(cluster.address)[1]}, which was free a moment ago, is in use "
            "now: start again."
        ) from error


def check_order() -> None:
    """Refuses to go on if TensorFlow has started: no worker can join then.

    PRIVATE TENSORFLOW API (2.21): Context._context_handle. There is no public way
    to ask without starting it.
    """
    if _context()._context_handle is not None:
        raise UserError(
            "TensorFlow has already started, and can join no other worker any more: build "
            "the strategy before any operation, model or dataset is created; in a notebook, "
            "restart the kernel and run tfaccel.devices.configure() and "
            "tfaccel.distribution.build() first."
        )


def _watch_workers(cluster: Cluster, timeout: float) -> None:
    """Bounds how long TensorFlow waits for workers, and for a sign of life of theirs.

    PRIVATE TENSORFLOW API (2.21): Context.configure_coordination_service, which the
    strategy calls itself, with limits of an hour, if nobody has before.
    tests/test_multiworker.py tells when TensorFlow changes.
    """
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2

    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=len(cluster.workers))
    _context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=int(1000 * timeout),
        heartbeat_timeout_in_ms=1000 * _HEARTBEAT_SECONDS,
        coordinated_jobs=[job],
    )


@contextlib.contextmanager
def _on_cpus(count: int) -> Iterator[None]:
    """Lets workers have several logical CPUs, to try out what they do with several GPUs.

    PRIVATE TENSORFLOW API (2.21): CollectiveAllReduceExtended._initialize_local_devices,
    which knows one CPU only. tests/test_multiworker.py tells when TensorFlow changes.
    """
    from tensorflow.python.distribute import collective_all_reduce_strategy

    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    if count < 2:
        yield
        return

    def local_devices(self, resolver, worker_device):
        names = tuple(f"{worker_device}/device:CPU:{index}" for index in range(count))
        return names, "CPU"

    original = extended._initialize_local_devices
    extended._initialize_local_devices = local_devices
    try:
        yield
    finally:
        extended._initialize_local_devices = original


def _context():
    from tensorflow.python.eager import context

    return context.context()
