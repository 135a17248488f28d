"""Curves for TensorBoard, on one step axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfaccel.callbacks.measurement import Measurement
from tfaccel.callbacks.metric_rows import MetricRows
from tfaccel.event_files import EventLog


class Summaries(MetricRows):
    """Writes metrics and measurements for TensorBoard.

    Training and validation share one axis, the steps done over all restarts, and
    one name a metric, so that TensorBoard draws them in one chart. After a restart
    nothing is missing and nothing stands twice.

    Args:
        log: Where to write: a folder, or an `EventLog` that others use, too.
        every: Steps between points within an epoch; 0 writes epoch ends only.
        first_step: Steps done before this call of fit.
        measurements: Callbacks whose `latest()` to write as well; they stand before
            this one in the list.
        hyperparameters: Settings for the HParams page.

    Example:
        rate = tfaccel.callbacks.LearningRateLogger()
        summaries = tfaccel.callbacks.Summaries("events", measurements=[rate])
        model.fit(x, y, callbacks=[rate, summaries])
    """

    def __init__(
        self,
        log: str | Path | EventLog,
        *,
        every: int = 0,
        first_step: int = 0,
        measurements: Sequence[Measurement] = (),
        hyperparameters: dict[str, object] | None = None,
    ):
        super().__init__(every, first_step)
        self._log = log if isinstance(log, EventLog) else EventLog(log)
        self._measurements = measurements
        self._hyperparameters = hyperparameters

    def drop_rows_after(self, step: int) -> set[int]:
        """Drops points after a step; returns the steps of those that stay."""
        written = self._log.start(step)
        if self._hyperparameters and not step:
            self._log.hyperparameters("train", self._hyperparameters)
        return written.get("train", set())

    def write_row(self, row: dict[str, float]) -> None:
        """Writes the row's points, and what the measurements say now."""
        step, validation = row["step"], {}
        training = {name: value for name, value in row.items() if name != "step"}
        for name in [name for name in training if name.startswith("val_")]:
            validation[name.removeprefix("val_")] = training.pop(name)
        for measurement in self._measurements:
            training |= measurement.latest()
        self._log.scalars("train", training, step)
        if validation:
            self._log.scalars("validation", validation, step)
