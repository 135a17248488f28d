"""metrics.csv: what a run measured, one row a log interval and one an epoch."""

from pathlib import Path

from tfaccel.callbacks.csv_file import CsvFile
from tfaccel.callbacks.metric_rows import MetricRows


class MetricsCSV(MetricRows):
    """Writes metrics to a CSV file that survives restarts.

    A row holds the means since the row before it (not since the start of the
    epoch, as Keras's logs do), so that a curve shows what happened when.
    Validation metrics stand in the row of their epoch's end. On a restart, rows
    after the restored step are dropped. The columns are described in
    docs/results.md.

    Args:
        path: The file; its folder is made.
        every: Steps between rows within an epoch; 0 writes epoch ends only.
        first_step: Steps done before this call of fit.

    Example:
        model.fit(x, y, callbacks=[tfaccel.callbacks.MetricsCSV("metrics.csv")])
    """

    def __init__(self, path: str | Path, every: int = 0, first_step: int = 0):
        super().__init__(every, first_step)
        self._file = CsvFile(path)

    def drop_rows_after(self, step: int) -> set[int]:
        """Drops rows after a step; returns the steps of those that stay."""
        return self._file.drop_after(step)

    def write_row(self, row: dict[str, float]) -> None:
        """Appends one row."""
        self._file.append(row)
