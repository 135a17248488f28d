"""Model builders, called as ``f(input_shape=..., num_classes=...)``."""

from tfaccel import lazy as _lazy

_NAMES = {"build": "tfaccel.models.registry"}
_MODULES = ("pretrained", "registry", "resnet50", "resnet9", "vgg16")
__all__ = [*_NAMES, *_MODULES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES, names=_NAMES)
