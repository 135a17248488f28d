"""Horovod behind a few functions: sums over workers, and one start for all.

Not part of tfaccel's requirements: scripts/install_horovod.sh builds it, and NVIDIA's
TensorFlow images carry it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfaccel import graph
from tfaccel.errors import UserError, one_line
from tfaccel.lazy import tf

# Types that Horovod 0.28.1 does not know (horovod/tensorflow/mpi_ops.cc), and wider
# ones that carry them without loss. Seeds are uint32.
_CARRIERS = {"bfloat16": "float32", "uint32": "int64"}


def launched_workers() -> int:
    """Returns how many workers horovodrun or our launcher has started; 0 if neither."""
    size = os.environ.get("HOROVOD_SIZE", "")
    return int(size) if size.isdigit() else 0


def start() -> None:
    """Joins the other workers; must run before TensorFlow touches a GPU.

    Raises:
        UserError: If Horovod is not installed, or cannot join.
    """
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise missing(error) from error
    try:
        hvd.init()
    except Exception as error:
        raise UserError(
            f"Horovod cannot start ({one_line(error, 300)}): start the workers with python -m "
            "tfaccel.launch --horovod --workers=2 -- ..., or with horovodrun."
        ) from error


def missing(error: ImportError) -> UserError:
    """Returns what to say where Horovod cannot be imported."""
    return UserError(
        f"Horovod cannot be imported ({one_line(error, 150)}): build it with "
        "scripts/install_horovod.sh, or use NVIDIA's TensorFlow images, which carry it."
    )


def active() -> bool:
    """Whether `start` has run in this process."""
    return sys.modules.get("horovod.tensorflow") is not None and _hvd().is_initialized()


def rank() -> int:
    """Returns this worker's place, from 0."""
    return _hvd().rank()


def size() -> int:
    """Returns the number of workers."""
    return _hvd().size()


def local_rank() -> int:
    """Returns this worker's place among those of its host, from 0."""
    return _hvd().local_rank()


def local_size() -> int:
    """Returns the number of workers on this host."""
    return _hvd().local_size()


def all_reduce_sum(tensors: Sequence[Any]) -> list[Any]:
    """Returns each tensor's sum over the workers, all in one exchange.

    Not within a function that XLA compiles.

    Args:
        tensors: Dense tensors, the same number and shapes on all workers; None
            stays None.
    """
    hvd = _hvd()
    given = [tensor for tensor in tensors if tensor is not None]
    # A group is fused into one exchange, however the tensors become ready.
    carried = [_carried(tensor) for tensor in given]
    sums = hvd.grouped_allreduce(carried, op=hvd.Sum) if given else []
    back = (tf.cast(total, t.dtype) for total, t in zip(sums, given, strict=True))
    return [None if tensor is None else next(back) for tensor in tensors]


def broadcast(variables: Sequence[Any]) -> None:
    """Gives variables the values that they have on worker 0.

    Args:
        variables: TensorFlow's or Keras's, in the same order on all workers.
    """
    hvd = _hvd()
    # Keras's wrap TensorFlow's, whose own `value` is a method.
    raw = [v.value if hasattr(v, "path") else v for v in variables]

    def run():
        for variable in raw:
            value = hvd.broadcast(_carried(variable.read_value()), root_rank=0)
            variable.assign(tf.cast(value, variable.dtype))

    # As one graph, so that many small ones do not wait for each other.
    graph.own(run, autograph=False)()


def average(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns each number's mean over the workers, such as an epoch's metrics.

    Args:
        metrics: The same names on all workers.
    """
    names = sorted(metrics)
    if not names:
        return {}
    values = tf.constant([float(metrics[name]) for name in names], tf.float64)
    (sums,) = all_reduce_sum([values])
    means = (sums / size()).numpy()
    return {name: float(mean) for name, mean in zip(names, means, strict=True)}


def _carried(tensor):
    tensor = tf.convert_to_tensor(tensor)
    return tf.cast(tensor, _CARRIERS.get(tensor.dtype.name, tensor.dtype))


def _hvd():
    import horovod.tensorflow as hvd

    return hvd
