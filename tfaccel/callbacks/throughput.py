"""Training speed, without compilation, evaluation and checkpoints."""

import time

import keras


class Throughput(keras.callbacks.Callback):
    """Measures how many images a second the training steps take.

    The first call of each `fit` is left out, as it compiles; so is all that
    happens between steps.

    Args:
        global_batch_size: Examples a step takes.

    Example:
        throughput = tfaccel.callbacks.Throughput(global_batch_size=32)
        model.fit(x, y, batch_size=32, callbacks=[throughput])
        print(throughput.images_per_second)
    """

    remembered = ("images", "seconds")

    def __init__(self, global_batch_size: int):
        super().__init__()
        self.global_batch_size = global_batch_size
        self.images = 0
        self.seconds = 0.0

    @property
    def images_per_second(self) -> float | None:
        """Images a second so far; None before the second call."""
        return self.images / self.seconds if self.seconds else None

    def on_train_begin(self, logs=None):
        """Leaves the next call out, as it compiles."""
        self._compiled = False

    def on_train_batch_begin(self, batch, logs=None):
        """Starts the clock."""
        self._first = batch
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Stops the clock."""
        if self._compiled:
            self.seconds += time.perf_counter() - self._start
            self.images += (batch + 1 - self._first) * self.global_batch_size
        self._compiled = True
