"""Keras callbacks; each works in `tfaccel.fit` and in a stock `model.fit`."""

from tfaccel import lazy as _lazy

_NAMES = {
    "MetricsCSV": "tfaccel.callbacks.metrics_csv",
    "NotLearning": "tfaccel.callbacks.not_learning",
    "RunProgress": "tfaccel.callbacks.run_progress",
    "Throughput": "tfaccel.callbacks.throughput",
}
__all__ = [*_NAMES]
__getattr__ = _lazy.attributes(__name__, modules=("early_stopping",), names=_NAMES)
