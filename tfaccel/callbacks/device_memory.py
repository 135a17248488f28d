"""How much memory a run takes, on the host and on its GPUs."""

import time

import tensorflow as tf

from tfaccel import host
from tfaccel.callbacks.measurement import Measurement

# Looking takes as long as a small step, and several ask.
_FRESH_SECONDS = 0.1


class DeviceMemory(Measurement):
    """Looks up memory when asked, ten times a second at most, and at each epoch's end.

    On the host it is the resident memory of this process; on a GPU what TensorFlow's
    allocator holds, now and at its peak (`tf.config.experimental.get_memory_info`).
    Both are asked of the driver's books: nothing waits for the device.

    Example:
        memory = tfaccel.callbacks.DeviceMemory()
        model.fit(x, y, callbacks=[memory])
        print(memory.peak_host_bytes / 2**20, "MiB")
    """

    remembered = ("peak_host_bytes", "peak_gpu_bytes")

    def __init__(self):
        super().__init__()
        self.peak_host_bytes = 0
        self.peak_gpu_bytes = []
        self._latest, self._looked = {}, float("-inf")

    def latest(self) -> dict[str, int]:
        """Returns bytes in use: "host_memory_bytes", and of GPUs the peak, too."""
        now = time.perf_counter()
        if now - self._looked >= _FRESH_SECONDS:
            self._latest, self._looked = self._look(), now
        return dict(self._latest)

    def _look(self):
        resident = host.process_memory_bytes()
        self.peak_host_bytes = max(self.peak_host_bytes, resident)
        found = {"host_memory_bytes": resident}
        gpus = len(tf.config.list_logical_devices("GPU"))
        self.peak_gpu_bytes = self.peak_gpu_bytes[:gpus] + [0] * (
            gpus - len(self.peak_gpu_bytes)
        )
        for index in range(gpus):
            info = tf.config.experimental.get_memory_info(f"GPU:{index}")
            found[f"gpu{index}_memory_bytes"] = info["current"]
            found[f"gpu{index}_peak_memory_bytes"] = info["peak"]
            self.peak_gpu_bytes[index] = max(self.peak_gpu_bytes[index], info["peak"])
        return found
