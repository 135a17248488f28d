"""tfaccel makes the levers that speed up TensorFlow/Keras 3 training work together.

Every name is loaded on first use, so that ``import tfaccel`` costs nothing.
"""

import importlib

__version__ = "0.1.0"

_HOME_OF = {
    "UserError": "tfaccel.errors",
    "fit": "tfaccel.loop",
}
_SUBMODULES = (
    "callbacks",
    "checkpoint",
    "config",
    "data",
    "devices",
    "distribution",
    "loop",
    "models",
    "optimizers",
    "plan",
    "precision",
    "schedules",
)
__all__ = [*sorted(_HOME_OF), *_SUBMODULES]


def __getattr__(name: str):
    if name in _SUBMODULES:
        return importlib.import_module(f"tfaccel.{name}")
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'tfaccel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
