"""Devices and threads, set up before TensorFlow starts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

from tfaccel import host
from tfaccel.errors import UserError
from tfaccel.fields import Count, PositiveInt
from tfaccel.lazy import tf
from tfaccel.log import logger


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A visible GPU: its name and CUDA compute capability, such as (8, 0)."""

    name: str
    compute_capability: tuple[int, int] | None


def check(
    *,
    visible: str,
    memory_growth: bool,
    memory_limit_mb: Count,
    intra_op_threads,
    inter_op_threads,
    strict: bool,
    compile_cache: str | None,
) -> None:
    """Refuses combinations of `configure`'s arguments that cannot work."""
    del intra_op_threads, inter_op_threads, strict
    if compile_cache and Path(compile_cache).is_file():
        raise UserError(
            f"received devices.compile_cache={compile_cache}, which is a file, expected a "
            "folder."
        )
    if memory_growth and memory_limit_mb:
        raise UserError(
            f"received memory_growth=True and memory_limit_mb={memory_limit_mb}, "
            "expected one of them: growth takes what it needs, a limit takes a "
            "fixed share. Leave one out."
        )
    if visible != "all":
        _indices(visible)


def configure(
    *,
    visible: str = "all",
    memory_growth: bool = False,
    memory_limit_mb: Count = 0,
    intra_op_threads: Literal["auto"] | PositiveInt = "auto",
    inter_op_threads: Literal["auto"] | PositiveInt = "auto",
    strict: bool = False,
    compile_cache: str | None = None,
) -> None:
    """Sets up GPUs and threads; must run before TensorFlow touches a device.

    Args:
        visible: "all", "none", or GPU indices such as "0,2".
        memory_growth: Let GPU memory grow as needed instead of taking all of it.
        memory_limit_mb: Megabytes to take from each GPU, 0 for no limit.
        intra_op_threads: Threads within an operation. "auto" is the CPUs that
            the container grants, where TensorFlow would take all it can see.
        inter_op_threads: Threads across operations, likewise.
        strict: Raise instead of warn when TensorFlow has started already.
        compile_cache: Folder in which XLA keeps what it has compiled, so that the
            next start need not compile it again.

    Raises:
        UserError: For an unknown GPU index, growth together with a limit, or
            (with `strict`) a call that comes too late.

    Example:
        tfaccel.devices.configure(memory_growth=True)
        model = keras.applications.ResNet50()
    """
    check(
        visible=visible,
        memory_growth=memory_growth,
        memory_limit_mb=memory_limit_mb,
        intra_op_threads=intra_op_threads,
        inter_op_threads=inter_op_threads,
        strict=strict,
        compile_cache=compile_cache,
    )
    if compile_cache:
        _keep_compiled(Path(compile_cache))
    try:
        _set_threads(intra_op_threads, inter_op_threads)
        _set_visible(visible)
        for gpu in tf.config.get_visible_devices("GPU"):
            _set_memory(gpu, memory_growth, memory_limit_mb)
    except RuntimeError as error:
        message = (
            "devices cannot be set up any more: TensorFlow has already started. "
            "Call tfaccel.devices.configure() before any operation, model or "
            "dataset is created; in a notebook, restart the kernel and run it first."
        )
        if strict:
            raise UserError(message) from error
        logger.warning("%s Going on with the settings in force.", message)
        return
    _log_choice(memory_growth, memory_limit_mb)


def gpus() -> list[Gpu]:
    """Returns the visible GPUs with their compute capability."""
    found = []
    for device in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        name = details.get("device_name", device.name)
        found.append(Gpu(name, details.get("compute_capability")))
    return found


def describe() -> dict[str, object]:
    """Returns the hardware in use, for a report."""
    return {**host.describe(), "gpus": [gpu.name for gpu in gpus()]}


def _keep_compiled(folder: Path) -> None:
    """Sets the flag that XLA reads when it first compiles."""
    folder.mkdir(parents=True, exist_ok=True)
    flag = f"--tf_xla_persistent_cache_directory={folder.absolute()}"
    others = os.environ.get("TF_XLA_FLAGS", "").split()
    os.environ["TF_XLA_FLAGS"] = " ".join([*others, flag])


def _set_threads(intra_op, inter_op) -> None:
    auto = host.cpu_count()
    threading = tf.config.threading
    threading.set_intra_op_parallelism_threads(auto if intra_op == "auto" else intra_op)
    threading.set_inter_op_parallelism_threads(auto if inter_op == "auto" else inter_op)


def _set_visible(visible: str) -> None:
    if visible == "all":
        return
    present = tf.config.list_physical_devices("GPU")
    indices = _indices(visible)
    missing = [index for index in indices if index >= len(present)]
    if missing:
        raise UserError(
            f"received devices.visible={visible!r}, but this machine has "
            f"{len(present)} GPU(s): use indices below {len(present)}, 'all' or 'none'."
        )
    tf.config.set_visible_devices([present[i] for i in indices], "GPU")


def _indices(visible: str) -> list[int]:
    if visible == "none":
        return []
    parts = visible.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise UserError(
            f"received devices.visible={visible!r}, expected 'all', 'none' or GPU "
            "indices such as '0,2'."
        )
    return [int(part) for part in parts]


def _set_memory(gpu, growth: bool, limit_mb: int) -> None:
    if growth:
        tf.config.experimental.set_memory_growth(gpu, True)
    elif limit_mb:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_mb)
        tf.config.set_logical_device_configuration(gpu, [limit])


def _log_choice(growth: bool, limit_mb: int) -> None:
    found = gpus()
    memory = "grows as needed" if growth else "taken whole"
    memory = f"{limit_mb} MB each" if limit_mb else memory
    names = ", ".join(gpu.name for gpu in found)
    gpu_text = f"{len(found)} GPU(s): {names}, memory {memory}" if found else "no GPU"
    logger.info("devices: %s; %d CPU(s)", gpu_text, host.cpu_count())
    if not found and (growth or limit_mb):
        logger.info("devices: a GPU memory setting was given, but there is no GPU")
