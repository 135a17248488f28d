"""metrics.csv: what a run measured, one row a log interval and one an epoch."""

import csv
from pathlib import Path

import keras


class MetricsCSV(keras.callbacks.Callback):
    """Writes metrics to a CSV file that survives restarts.

    A row holds the means since the row before it (not since the start of the
    epoch, as Keras's logs do), so that a curve shows what happened when.
    Validation metrics stand in the row of their epoch's end. On a restart, rows
    after the restored step are dropped.

    Args:
        path: The file; its folder is made.
        every: Steps between rows within an epoch; 0 writes epoch ends only.
        first_step: Steps done before this call of fit.

    Example:
        model.fit(x, y, callbacks=[tfaccel.callbacks.MetricsCSV("metrics.csv")])
    """

    remembered = ("_epoch", "_in_epoch", "_window_start", "_latest", "_before", "_pending")

    def __init__(self, path: str | Path, every: int = 0, first_step: int = 0):
        super().__init__()
        self.path = Path(path)
        self.every = every
        self.step = first_step

    def next_boundary(self, step: int) -> int | None:
        """Returns the next step after `step` at which a row is due."""
        return (step // self.every + 1) * self.every if self.every else None

    def on_train_begin(self, logs=None):
        """Drops rows that a restart will write again."""
        self._epoch = 0
        self._columns = self._drop_rows_after(self.step)
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
        self.step += batch + 1 - self._batch_start
        self._in_epoch, self._latest = batch + 1, dict(logs or {})
        if self.every and self.step % self.every == 0:
            self._pending = self._row()

    def on_epoch_end(self, epoch, logs=None):
        """Writes the row of the epoch's end, validation included."""
        if self._pending is None:
            self._pending = self._row()
        # Keras's own fit hands the epoch's metrics over only here.
        for name, value in (logs or {}).items():
            if name.startswith("val_"):
                self._pending[name] = f"{value:.7g}"
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
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        row = {"step": self.step, "epoch": self._epoch, "learning_rate": f"{rate:.7g}"}
        for name, value in self._latest.items():
            total = value * count - self._before.get(name, 0.0) * start
            row[name] = f"{total / max(1, count - start):.7g}"
        self._window_start, self._before = count, self._latest
        return row

    def _flush(self):
        if self._pending is None:
            return
        row, self._pending = self._pending, None
        if row["step"] in self._written:
            return  # A restart brought back a row that had been written since.
        new = [name for name in row if name not in self._columns]
        if new:
            self._rewrite(self._read(), self._columns + new)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)
        self._written.add(row["step"])

    def _drop_rows_after(self, step):
        rows = self._read()
        columns = list(rows[0]) if rows else []
        kept = [row for row in rows if int(row["step"]) <= step]
        if rows:
            self._rewrite(kept, columns)
        self._written = {int(row["step"]) for row in kept}
        return columns

    def _read(self):
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        # A run that was killed may have left half a row.
        return [row for row in rows if str(row.get("step", "")).isdigit()]

    def _rewrite(self, rows, columns):
        self._columns = columns
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.partial")
        with partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self.path)
