"""Progress of the whole run: a bar on a terminal or in a notebook, plain lines elsewhere."""

import sys
import time

import keras
from tqdm import tqdm

from tfaccel.callbacks import notebook_bar
from tfaccel.callbacks.pace import Pace


class RunProgress(keras.callbacks.Callback):
    """Shows how far a run is, how well it does and when it will be done.

    Args:
        total_steps: Steps of the whole run.
        first_step: Steps done before this call of `fit`.
        line_seconds: Where there is no terminal: seconds between lines.
        stream: Where to write; by default a notebook's cell, or standard output.

    Example:
        model.fit(x, y, verbose=0, callbacks=[tfaccel.callbacks.RunProgress(1000)])
    """

    chief_only = True
    remembered = ()

    def __init__(
        self, total_steps: int, first_step: int = 0, line_seconds: float = 10.0, stream=None
    ):
        super().__init__()
        self.total_steps = total_steps
        self.line_seconds = line_seconds
        self._pace = Pace(first_step)
        self._notebook = stream is None and notebook_bar.in_notebook()
        self._stream = stream or sys.stdout
        self._bar = None
        self._metrics = set()

    @property
    def step(self) -> int:
        """Steps done, over all restarts."""
        return self._pace.step

    def on_train_begin(self, logs=None):
        """Starts the bar and the clock."""
        self._pace = Pace(self.step)
        self._line_time = time.perf_counter()
        if self._notebook:
            self._bar = notebook_bar.NotebookBar(self.total_steps, self.step)
        elif self._stream.isatty():
            self._bar = tqdm(
                total=self.total_steps,
                initial=self.step,
                unit="step",
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {desc}",
            )

    def on_epoch_begin(self, epoch, logs=None):
        """Notes the epoch."""
        self._epoch = epoch + 1

    def on_train_batch_begin(self, batch, logs=None):
        """Notes where the coming steps start."""
        self._batch_start = batch

    def on_train_batch_end(self, batch, logs=None):
        """Moves the bar, or writes a line if it is time for one."""
        steps = batch + 1 - self._batch_start
        self._pace.advance(steps)
        self._metrics = set(logs or {})
        if self._bar is not None:
            self._bar.set_description_str(self._text(logs), refresh=False)
            self._bar.update(steps)
        elif time.perf_counter() - self._line_time >= self.line_seconds:
            self._write(self._text(logs))

    def on_epoch_end(self, epoch, logs=None):
        """Writes the epoch's metrics, which stay above the bar."""
        self._write(self._text(logs))

    def on_train_end(self, logs=None):
        """Takes the bar away."""
        self.close()

    def close(self) -> None:
        """Takes the bar away, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _write(self, text):
        self._line_time = time.perf_counter()
        tqdm.write(f"step {self.step}/{self.total_steps}  {text}", file=self._stream)
        self._stream.flush()

    def _text(self, logs):
        # Other callbacks may have added to the logs of an epoch.
        metrics = "  ".join(
            f"{name} {value:.4g}"
            for name, value in (logs or {}).items()
            if name in self._metrics or name.startswith("val_")
        )
        return f"epoch {self._epoch}  {metrics}  {self._end()}".rstrip()

    def _end(self):
        if self.step >= self.total_steps:
            return "done"
        seconds = self._pace.seconds_left(self.total_steps)
        return "" if seconds is None else f"{_duration(seconds)} left"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
