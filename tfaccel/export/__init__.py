"""Export of a trained model: files for other runtimes, each proven in its own."""

from tfaccel import lazy as _lazy

_NAMES = {"export": "tfaccel.export.exporter", "Normalization": "tfaccel.export.normalization"}
_MODULES = ("artefact", "exporter", "formats", "normalization", "rebuild", "table", "weights")
__all__ = [*_NAMES, *_MODULES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES, names=_NAMES)
