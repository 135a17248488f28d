"""Training speed, without compilation, evaluation and checkpoints."""

import time

from tfaccel.callbacks.measurement import Measurement


class Throughput(Measurement):
    """Measures how many images a second the training steps take.

    The first call of each `fit` is left out, as it compiles; so is all that
    happens between steps.

    Args:
        global_batch_size: Examples a step takes.
        devices: How many devices share them.
        total_steps: Steps of the whole run, for `seconds_left`.
        first_step: Steps done before this call of `fit`.
        flops_per_image: Floating point operations of one training step for one
            image; see `tfaccel.flops.training`.
        peak_flops_per_second: What one device could do at best; see
            `tfaccel.chips.peak_flops_per_second`.

    Example:
        throughput = tfaccel.callbacks.Throughput(global_batch_size=32)
        model.fit(x, y, batch_size=32, callbacks=[throughput])
        print(throughput.images_per_second)
    """

    remembered = ("images", "seconds")

    def __init__(
        self,
        global_batch_size: int,
        *,
        devices: int = 1,
        total_steps: int | None = None,
        first_step: int = 0,
        flops_per_image: float | None = None,
        peak_flops_per_second: float | None = None,
    ):
        super().__init__()
        self.global_batch_size = global_batch_size
        self.devices = devices
        self.total_steps = total_steps
        self.step = first_step
        self.flops_per_image = flops_per_image
        self.peak_flops_per_second = peak_flops_per_second
        self.images = 0
        self.seconds = 0.0

    @property
    def images_per_second(self) -> float | None:
        """Images a second so far, all devices together; None before the second call."""
        return self.images / self.seconds if self.seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the steps left will take, without evaluation; None if unknown."""
        speed = self.images_per_second
        if speed is None or self.total_steps is None:
            return None
        return max(0, self.total_steps - self.step) * self.global_batch_size / speed

    def summary(self) -> dict[str, float | None]:
        """Returns all there is to say, for a report; see docs/results.md."""
        speed, peak = self.images_per_second, self.peak_flops_per_second
        flops = self.flops_per_image and speed and self.flops_per_image * speed
        return {
            "images_per_second": speed,
            "images_per_second_per_device": speed and speed / self.devices,
            "devices": self.devices,
            "flops_per_image": self.flops_per_image,
            "flops_per_second": flops,
            "peak_flops_per_second": peak and peak * self.devices,
            "mfu": flops / (peak * self.devices) if flops and peak else None,
        }

    def latest(self) -> dict[str, float]:
        """Returns images a second so far, and model FLOPs utilisation, where known."""
        summary = self.summary()
        names = ("images_per_second", "images_per_second_per_device", "mfu")
        return {name: summary[name] for name in names if summary[name] is not None}

    def on_train_begin(self, logs=None):
        """Leaves the next call out, as it compiles."""
        self._compiled = False

    def on_train_batch_begin(self, batch, logs=None):
        """Starts the clock."""
        self._first = batch
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Stops the clock."""
        steps = batch + 1 - self._first
        self.step += steps
        if self._compiled:
            self.seconds += time.perf_counter() - self._start
            self.images += steps * self.global_batch_size
        self._compiled = True
