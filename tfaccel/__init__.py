"""tfaccel makes the levers that speed up TensorFlow/Keras 3 training work together.

Every name is loaded on first use, so that ``import tfaccel`` costs nothing.
"""

from tfaccel import lazy as _lazy

__version__ = "0.1.0"

_NAMES = {
    "UserError": "tfaccel.errors",
    "fit": "tfaccel.training",
    "predict": "tfaccel.training",
}
_MODULES = (
    "callbacks",
    "checkpoint",
    "cluster",
    "config",
    "data",
    "devices",
    "distribution",
    "ema",
    "evaluate",
    "export",
    "horovod",
    "loop",
    "models",
    "optimizers",
    "plan",
    "precision",
    "pruning",
    "randomness",
    "report",
    "schedules",
    "step",
)
__all__ = [*_NAMES, *_MODULES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES, names=_NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
