"""Augmentation of whole batches, random per example, without state.

Each technique is a module whose `build` returns a function (images, keys) ->
images, which works in `dataset.map`, in a compiled step and under XLA alike;
`build` and `check_fits` here are those of `shift`, crop and flip.
"""

from tfaccel import lazy as _lazy
from tfaccel.data.augment.compose import chain, unchanged
from tfaccel.data.augment.shift import build, check_fits

_MODULES = (
    "boxes",
    "color_jitter",
    "cutout",
    "erasing",
    "randaugment",
    "resized_crop",
    "shift",
    "trivialaugment",
)
__all__ = ["build", "chain", "check_fits", "unchanged", *_MODULES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES)
