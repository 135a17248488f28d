"""Augmentation of whole batches, random per example, without state.

Each technique is a module whose `build` returns a function (images, keys) ->
images; `build` and `check_fits` here are those of `shift`, crop and flip.
"""

from tfaccel import lazy as _lazy
from tfaccel.data.augment.shift import build, check_fits

_MODULES = ("boxes", "shift")
__all__ = ["build", "check_fits", *_MODULES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES)
