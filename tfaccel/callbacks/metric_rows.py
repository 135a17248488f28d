"""The metrics of a run, a row a log interval and one an epoch, wherever they go."""

import abc

import keras


class MetricRows(keras.callbacks.Callback, abc.ABC):
    """Hands each row of metrics to `write_row`, once, through restarts.

    A row holds the means since the row before it (not since the start of the
    epoch, as Keras's logs do), so that a curve shows what happened when.
    Validation metrics stand in the row of their epoch's end. A subclass says where
    rows go: `drop_rows_after(step)` drops those that a restart will write again and
    returns the steps of the others; `write_row(row)` writes one.

    Args:
        every: Steps between rows within an epoch; 0 writes epoch ends only.
        first_step: Steps done before this call of fit.
    """

    chief_only = True
    remembered = ("_epoch", "_in_epoch", "_window_start", "_latest", "_before", "_pending")

    def __init__(self, every: int = 0, first_step: int = 0):
        super().__init__()
        self.every = every
        self.step = first_step
        self._rate = None

    @abc.abstractmethod
    def drop_rows_after(self, step: int) -> set[int]:
        """Drops rows after a step; returns the steps of those that stay."""

    @abc.abstractmethod
    def write_row(self, row: dict[str, float]) -> None:
        """Writes one row: "step", "epoch", "learning_rate" and metrics."""

    def next_boundary(self, step: int) -> int | None:
        """Returns the next step after `step` at which a row is due."""
        return (step // self.every + 1) * self.every if self.every else None

    def on_learning_rate(self, rate) -> None:
        """Is told the optimizer's rate by `tfaccel.fit`: to look at it takes longer."""
        self._rate = rate

    def on_train_begin(self, logs=None):
        """Drops rows that a restart will write again."""
        self._epoch = 0
        self._rate = None  # A stock fit, which tells nothing, may follow one of ours.
        self._written = self.drop_rows_after(self.step)
        self._pending = None
        self._start_window()

    def on_epoch_begin(self, epoch, logs=None):
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        """Notes where the coming steps start."""
        self._batch_start = batch

    def on_train_batch_end(self, batch, logs=None):
        """Notes the metrics so far, and a row if one is due."""
        self._flush()
        before = self.step
        self.step += batch + 1 - self._batch_start
        self._in_epoch, self._latest = batch + 1, dict(logs or {})
        if self.every and self.step // self.every > before // self.every:
            self._pending = self._row()

    def on_epoch_end(self, epoch, logs=None):
        """Writes the row of the epoch's end, validation included."""
        if self._pending is None:
            self._pending = self._row()
        # Keras's own fit hands the epoch's metrics over only here.
        for name, value in (logs or {}).items():
            if name.startswith("val_"):
                self._pending[name] = float(value)
        self._flush()
        self._start_window()

    def on_train_end(self, logs=None):
        """Writes what is left."""
        self._flush()

    def _start_window(self):
        self._in_epoch, self._window_start = 0, 0
        self._latest, self._before = {}, {}

    def _row(self):
        """Keras's logs are means since the epoch began; a row's are of its window."""
        count, start = self._in_epoch, self._window_start
        rate = self.model.optimizer.learning_rate if self._rate is None else self._rate
        rate = float(keras.ops.convert_to_numpy(rate))
        row = {"step": self.step, "epoch": self._epoch, "learning_rate": rate}
        for name, value in self._latest.items():
            total = value * count - self._before.get(name, 0.0) * start
            row[name] = total / max(1, count - start)
        self._window_start, self._before = count, self._latest
        return row

    def _flush(self):
        if self._pending is None:
            return
        row, self._pending = self._pending, None
        if row["step"] not in self._written:  # A restart may bring back a written row.
            self.write_row(row)
            self._written.add(row["step"])
