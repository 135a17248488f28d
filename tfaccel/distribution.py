"""The strategy that places a model on several devices."""

from __future__ import annotations

import itertools
from typing import Literal

from tfaccel import fields
from tfaccel.errors import UserError
from tfaccel.fields import Count
from tfaccel.lazy import tf
from tfaccel.log import logger

Strategy = Literal["auto", "none", "mirrored", "multiworker", "horovod"]
# Not from 0, where the user's own strategies start.
_COLLECTIVE_KEYS = itertools.count(100_000, 100_000)
_NOT_YET = ("multiworker", "horovod")


def check(*, strategy: Strategy, logical_cpus: Count) -> None:
    """Refuses combinations of `build`'s arguments that cannot work."""
    fields.check(Strategy, strategy, "distribution.strategy")
    if strategy in _NOT_YET:
        raise UserError(
            f"received distribution.strategy={strategy}: not yet. Use none, "
            "mirrored or auto; several workers come with a later release."
        )
    if strategy == "none" and logical_cpus > 1:
        raise UserError(
            f"received distribution.strategy=none with distribution.logical_cpus="
            f"{logical_cpus}: one device cannot be several. Use mirrored, or leave "
            "logical_cpus out."
        )


def build(*, strategy: Strategy = "auto", logical_cpus: Count = 0) -> tf.distribute.Strategy:
    """Returns the strategy; "auto" mirrors over all GPUs if there are several.

    Args:
        strategy: "none" (one device), "mirrored" (all GPUs of this machine, or
            its logical CPUs) or "auto".
        logical_cpus: Split the CPU into this many logical devices, to try out
            several replicas where there is no GPU; 0 leaves it whole.

    Raises:
        UserError: If the CPU cannot be split any more, or a combination cannot
            work.

    Example:
        with tfaccel.distribution.build(strategy="mirrored").scope():
            model = keras.applications.ResNet50()
            model.compile("sgd", "sparse_categorical_crossentropy")
    """
    check(strategy=strategy, logical_cpus=logical_cpus)
    if logical_cpus > 1:
        _split_cpu(logical_cpus)
    devices = tf.config.list_logical_devices("GPU")
    if logical_cpus or not devices:
        devices = tf.config.list_logical_devices("CPU")[: max(1, logical_cpus)]
    if strategy == "none" or (strategy == "auto" and len(devices) == 1):
        logger.info("distribution: one device (%s)", _why(strategy, devices[:1]))
        return tf.distribute.get_strategy()
    logger.info("distribution: mirrored over %s", _why(strategy, devices))
    return _mirrored([device.name for device in devices])


def _mirrored(devices: list[str]) -> tf.distribute.MirroredStrategy:
    """Returns a strategy whose collectives are its own.

    PRIVATE TENSORFLOW API (2.21): MirroredStrategy._collective_key_base. All
    strategies of a process number their collectives from the same start, so a
    second one (a notebook cell run again) would join the first one's and fail
    with "Shape mismatch in the collective instance". tests/test_distribution.py
    tells when TensorFlow changes.
    """
    own = {"_collective_key_base": next(_COLLECTIVE_KEYS)}
    strategy_class = type("MirroredStrategy", (tf.distribute.MirroredStrategy,), own)
    return strategy_class(devices)


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


def _why(strategy: str, devices: list) -> str:
    kind = devices[0].device_type
    return f"{len(devices)} {kind}, {'auto' if strategy == 'auto' else 'as asked'}"
