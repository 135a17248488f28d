"""Training data: sources, order, augmentation, normalisation, pipeline."""

from tfaccel import lazy as _lazy

_MODULES = (
    "array_records",
    "augment",
    "cifar",
    "class_folders",
    "decode",
    "files",
    "folder_sets",
    "image_index",
    "labels",
    "mixing",
    "normalize",
    "order",
    "own_sets",
    "per_image",
    "pipeline",
    "source",
    "sources",
    "tfds_sets",
)
__all__ = [*_MODULES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES)
