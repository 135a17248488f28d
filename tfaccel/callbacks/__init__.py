"""Keras callbacks; each works in `tfaccel.fit` and in a stock `model.fit`."""

from tfaccel import lazy as _lazy

_NAMES = {
    "DeviceMemory": "tfaccel.callbacks.device_memory",
    "GradientNorms": "tfaccel.callbacks.gradient_norms",
    "ImageGrid": "tfaccel.callbacks.image_grid",
    "LearningRateLogger": "tfaccel.callbacks.learning_rate_logger",
    "MetricsCSV": "tfaccel.callbacks.metrics_csv",
    "NonFiniteGuard": "tfaccel.callbacks.nonfinite_guard",
    "Profiler": "tfaccel.callbacks.profiler",
    "NotLearning": "tfaccel.callbacks.not_learning",
    "RunProgress": "tfaccel.callbacks.run_progress",
    "Summaries": "tfaccel.callbacks.summaries",
    "Throughput": "tfaccel.callbacks.throughput",
    "TimeSplit": "tfaccel.callbacks.time_split",
    "TimingCSV": "tfaccel.callbacks.timing_csv",
}
_MODULES = ("default", "early_stopping", "guard", "tensorboard")
__all__ = [*_NAMES]
__getattr__ = _lazy.attributes(__name__, modules=_MODULES, names=_NAMES)
