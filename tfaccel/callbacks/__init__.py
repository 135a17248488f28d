"""Keras callbacks; each works in `tfaccel.fit` and in a stock `model.fit`."""

import importlib

_HOME_OF = {
    "MetricsCSV": "tfaccel.callbacks.metrics_csv",
    "RunProgress": "tfaccel.callbacks.run_progress",
    "Throughput": "tfaccel.callbacks.throughput",
}
__all__ = [*_HOME_OF]


def __getattr__(name: str):
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'tfaccel.callbacks' has no attribute {name!r}")
