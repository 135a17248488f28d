"""How sparse a model is, and how many bytes that saves."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.lazy import keras
from tfaccel.log import logger
from tfaccel.pruning import kernels


def sparsity(model: keras.Model) -> dict[str, Any]:
    """Returns the sparsity of each kernel, and of all of them together.

    Counted are all weights that could be pruned, whether they were to be or not.

    Args:
        model: A built model, pruned or not.

    Returns:
        {"overall": share of zeros, "zeros": count, "weights": count, "tensors": [{
        "name", "shape", "zeros", "weights", "sparsity"}, ...]}
    """
    tensors = [_tensor(kernel) for kernel in kernels.find(model)]
    zeros = sum(tensor["zeros"] for tensor in tensors)
    weights = sum(tensor["weights"] for tensor in tensors)
    overall = zeros / weights if weights else 0.0
    return {"overall": overall, "zeros": zeros, "weights": weights, "tensors": tensors}


def log_sparsity(model: keras.Model) -> dict[str, Any]:
    """Returns what `sparsity` does, and logs it as a table."""
    found = sparsity(model)
    share, weights = 100 * found["overall"], found["weights"]
    logger.info("sparsity: %.2f %% of %s prunable weights", share, f"{weights:,}")
    width = max((len(tensor["name"]) for tensor in found["tensors"]), default=0)
    for tensor in found["tensors"]:
        logger.info(
            "  %s  %6.2f %%  %12s of %12s",
            tensor["name"].ljust(width),
            100 * tensor["sparsity"],
            f"{tensor['zeros']:,}",
            f"{tensor['weights']:,}",
        )
    return found


def file_sizes(path: Path) -> dict[str, int]:
    """Returns a file's {"bytes": as it is, "gzip_bytes": compressed at level 9}."""
    compressor = zlib.compressobj(9, wbits=31)
    size = compressed = 0
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            compressed += len(compressor.compress(block))
    return {"bytes": size, "gzip_bytes": compressed + len(compressor.flush())}


def _tensor(kernel: kernels.Kernel) -> dict[str, Any]:
    value = kernel.weight.numpy()
    zeros = value.size - int(np.count_nonzero(value))
    return {
        "name": kernel.path,
        "shape": list(value.shape),
        "zeros": zeros,
        "weights": value.size,
        "sparsity": zeros / value.size,
    }
