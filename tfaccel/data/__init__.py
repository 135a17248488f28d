"""Training data: sources, order, augmentation, normalisation, pipeline."""

from tfaccel import lazy as _lazy

_MODULES = (
    "augment",
    "mixing",
    "normalize",
    "order",
    "pipeline",
    "source",
    "sources",
    "tfds_sets",
)
__all__ = [*_MODULES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES)
