"""timing.csv: where time went, how fast, how much memory; the rows of metrics.csv."""

from pathlib import Path

import keras

from tfaccel.callbacks.csv_file import CsvFile
from tfaccel.callbacks.device_memory import DeviceMemory
from tfaccel.callbacks.throughput import Throughput
from tfaccel.callbacks.time_split import TimeSplit


class TimingCSV(keras.callbacks.Callback):
    """Writes what the measuring callbacks found since the row before.

    A row is due at the same steps as in metrics.csv, and written when the next step
    begins, so that the evaluation and the checkpoint after a step stand in its row.
    Put it behind the three callbacks it asks. The columns are described in
    docs/results.md.

    Args:
        path: The file; its folder is made.
        split: Where the time goes.
        throughput: How fast the steps are.
        memory: How much memory is in use.
        every: Steps between rows within an epoch; 0 writes epoch ends only.
        first_step: Steps done before this call of fit.

    Example:
        parts = [TimeSplit(), Throughput(32), DeviceMemory()]
        model.fit(x, y, callbacks=[*parts, TimingCSV("timing.csv", *parts)])
    """

    chief_only = True
    remembered = ("_due", "_before", "_epoch")

    def __init__(
        self,
        path: str | Path,
        split: TimeSplit,
        throughput: Throughput,
        memory: DeviceMemory,
        *,
        every: int = 0,
        first_step: int = 0,
    ):
        super().__init__()
        self.every = every
        self.step = first_step
        self._file = CsvFile(path)
        self._split, self._throughput, self._memory = split, throughput, memory

    def next_boundary(self, step: int) -> int | None:
        """Returns the next step after `step` at which a row is due."""
        return (step // self.every + 1) * self.every if self.every else None

    def on_train_begin(self, logs=None):
        """Drops rows that a restart will write again.

        A checkpoint is older than its own step's row, so that one goes, too.
        """
        self._file.drop_after(self.step - 1)
        self._due = False
        self._before = self._totals()

    def on_epoch_begin(self, epoch, logs=None):
        """Notes the epoch, after the row of the one before."""
        self._write_if_due()
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        """Writes a row if one is due."""
        self._write_if_due()
        self._batch_start = batch

    def on_train_batch_end(self, batch, logs=None):
        """Notes whether a row is due."""
        before = self.step
        self.step += batch + 1 - self._batch_start
        if self.every and self.step // self.every > before // self.every:
            self._due = True

    def on_epoch_end(self, epoch, logs=None):
        """Notes that a row is due."""
        self._due = True

    def on_train_end(self, logs=None):
        """Writes the last row."""
        self._due = True
        self._write_if_due()

    def _write_if_due(self) -> None:
        if not self._due:
            return
        totals = self._totals()
        window = {name: totals[name] - self._before[name] for name in totals}
        images, seconds = window.pop("images"), window.pop("image_seconds")
        if not self._split.knows_input_wait:
            window["input_wait_seconds"] = None
        row = {
            "step": self.step,
            "epoch": self._epoch,
            "seconds": sum(value or 0.0 for value in window.values()),
            **window,
            "images_per_second": images / seconds if seconds else None,
            **self._memory.latest(),
        }
        self._file.append(row)
        self._before, self._due = totals, False

    def _totals(self) -> dict[str, float]:
        split = {f"{part}_seconds": value for part, value in self._split.seconds.items()}
        throughput = self._throughput
        return {**split, "images": throughput.images, "image_seconds": throughput.seconds}
