"""How long a training step waits for its batch, measured inside the compiled call."""

from __future__ import annotations

import numpy as np

from tfaccel.lazy import tf


def timed_next(iterator):
    """Returns (the next batch, float64 [2]: when it was asked for and when it came).

    Call it in a graph; a look at the clock costs about a microsecond, and nothing
    waits for it.
    """
    with tf.device("CPU:0"):
        asked = tf.timestamp()
    with tf.control_dependencies([asked]):
        batch = next(iterator)
    tensors = tf.nest.flatten(batch, expand_composites=True)
    with tf.control_dependencies(tensors), tf.device("CPU:0"):
        came = tf.timestamp()
    return batch, tf.stack([asked, came])


def seconds(times: np.ndarray, end: float) -> float:
    """Returns how long the steps of one compiled call stood still for want of a batch.

    On a CPU that is the time between asking and getting. A GPU is handed work ahead
    of time, so the host may wait for a batch while the device is still busy with the
    ones before. But if a step takes c seconds on the device, the call ends no earlier
    than (steps left) x c after any batch came; the largest such c gives the device's
    busy time, and the rest of the call is the most that it can have waited. The
    smaller of the two bounds is returned.

    Args:
        times: float64 [steps, 2], from `timed_next`; seconds since 1970.
        end: When the call was over, on the same clock (`time.time()`).
    """
    asked, came = times[:, 0], times[:, 1]
    steps_left = np.arange(len(came), 0, -1)
    busy = len(came) * np.min((end - came) / steps_left)
    return max(0.0, min(float(np.sum(came - asked)), end - asked[0] - float(busy)))
