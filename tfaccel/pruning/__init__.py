"""Magnitude pruning of Keras 3 models, on TFMOT's schedules."""

from tfaccel import lazy as _lazy
from tfaccel.pruning.builder import build, check, prune
from tfaccel.pruning.kernels import masked, masks
from tfaccel.pruning.report import file_sizes, log_sparsity, sparsity

_NAMES = {"Pruner": "tfaccel.pruning.pruner"}
__all__ = [
    *_NAMES,
    "build",
    "check",
    "file_sizes",
    "log_sparsity",
    "masked",
    "masks",
    "prune",
    "sparsity",
]
__getattr__ = _lazy.attributes(__name__, names=_NAMES)
