"""TensorBoard's event files: writing them, and going on with them after a restart."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tfaccel.errors import one_line
from tfaccel.lazy import tf
from tfaccel.log import logger


def available() -> bool:
    """Returns whether the package `tensorboard` is installed; TensorFlow needs it to write."""
    return importlib.util.find_spec("tensorboard") is not None


class EventLog:
    """Writes to a folder that TensorBoard reads; never stops a run.

    If the folder cannot be written, there is one warning, and nothing more is tried.

    Args:
        directory: The folder; each part (such as "train") becomes a folder in it.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self._writers = {}
        self._failed = False

    def start(self, first_step: int) -> dict[str, set[int]]:
        """Drops what a restart will write again.

        Args:
            first_step: Steps done before. 0 starts anew; otherwise what was written
                after that step goes.

        Returns:
            The steps that each part holds scalars of.
        """
        found = {}

        def go_on():
            if not first_step:
                shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True, exist_ok=True)
            for path in sorted(self.directory.glob("*/events.out.tfevents.*")):
                found.setdefault(path.parent.name, set()).update(_cut(path, first_step))

        self._try(go_on)
        return found

    def scalars(self, part: str, values: dict[str, float], step: int) -> None:
        """Writes numbers by name."""

        def write():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)

        self._write(part, write)

    def images(self, part: str, name: str, images: np.ndarray, step: int) -> None:
        """Writes uint8 images [n, height, width, channels of 1, 3 or 4]."""
        self._write(
            part, lambda: tf.summary.image(name, images, step=step, max_outputs=len(images))
        )

    def hyperparameters(self, part: str, values: dict[str, object]) -> None:
        """Writes a run's settings for TensorBoard's HParams page."""
        from tensorboard.plugins.hparams import api

        plain = (bool, int, float, str)
        as_text = {k: v if isinstance(v, plain) else str(v) for k, v in values.items()}
        self._write(part, lambda: api.hparams(as_text))

    def _write(self, part, write):
        def with_writer():
            if part not in self._writers:
                path = str(self.directory / part)
                self._writers[part] = tf.summary.create_file_writer(path)
            writer = self._writers[part]
            with writer.as_default(), tf.summary.record_if(True):
                write()
            # At once: what a killed run had not written, its restart would lack.
            writer.flush()

        self._try(with_writer)

    def _try(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except (OSError, tf.errors.OpError) as error:
            self._failed = True
            logger.warning(
                "TensorBoard's folder %s cannot be written (%s): training goes on without it.",
                self.directory,
                one_line(error, 150),
            )


def _cut(path: Path, last_step: int) -> set[int]:
    """Drops the events after a step from a file; returns the steps of its scalars."""
    kept, steps = [], set()
    try:
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            if event.step <= last_step:
                kept.append(record.numpy())
                plugins = {v.metadata.plugin_data.plugin_name for v in event.summary.value}
                steps |= {event.step} if "scalars" in plugins else set()
    except tf.errors.DataLossError:
        pass  # A run that was killed may have left half an event at the end.
    partial = path.with_name(f".partial.{path.name}")
    with tf.io.TFRecordWriter(str(partial)) as writer:
        for record in kept:
            writer.write(record)
    partial.replace(path)
    return steps
