"""report.html: what a run did, on one page that needs no network; or several side by side.

Neither importing it nor building a page imports TensorFlow.
"""

from tfaccel import lazy as _lazy

_NAMES = {
    "Run": "tfaccel.report.runs",
    "build": "tfaccel.report.page",
    "read": "tfaccel.report.runs",
}
__all__ = [*_NAMES]
__getattr__ = _lazy.attributes(__name__, names=_NAMES)
