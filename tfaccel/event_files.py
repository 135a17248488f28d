"""TensorBoard's event files: writing them, and going on with them after a restart."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tfaccel.errors import one_line
from tfaccel.lazy import tf
from tfaccel.log import logger

_PARTS = ("train", "validation", "test")


def available() -> bool:
    """Returns whether the package `tensorboard` is installed."""
    return importlib.util.find_spec("tensorboard") is not None


class EventLog:
    """Writes to a folder that TensorBoard reads; never stops a run.

    If the folder cannot be written, there is one warning, and nothing more is tried.
    An event file is a TFRecord file of `Event` messages. They are written here without
    TensorFlow operations, one a point, which took most of a log's time, and reach the
    file at once: what a killed run had not written, its restart would lack.

    Args:
        directory: The folder; the parts "train", "validation" and "test" are folders in
            it, and runs to TensorBoard.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self._writers = {}
        self._failed = False

    def start(self, first_step: int) -> dict[str, set[int]]:
        """Drops what a restart will write again.

        Args:
            first_step: Steps done before. 0 takes away the event files of an earlier
                run; otherwise what was written after that step goes.

        Returns:
            The steps that each part holds scalars of.
        """
        found = {}

        def go_on():
            self.directory.mkdir(parents=True, exist_ok=True)
            for part in _PARTS:
                for path in (self.directory / part).glob("events.out.tfevents.*"):
                    if first_step:
                        found.setdefault(part, set()).update(_cut(path, first_step))
                    else:
                        path.unlink()

        self._writers = {}
        self._try(go_on)
        return found

    def scalars(self, part: str, values: dict[str, float], step: int) -> None:
        """Writes numbers by name."""
        event = _event(step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._write(part, event)

    def image(self, part: str, name: str, image: np.ndarray, step: int) -> None:
        """Writes a uint8 image [height, width, channels of 1, 3 or 4]."""
        event = _event(step=step)
        picture = event.summary.value.add(tag=name).image
        picture.height, picture.width, picture.colorspace = image.shape
        picture.encoded_image_string = tf.io.encode_png(image).numpy()
        self._write(part, event)

    def hyperparameters(self, part: str, values: dict[str, object]) -> None:
        """Writes a run's settings for TensorBoard's HParams page."""
        from tensorboard.plugins.hparams import api

        plain = (bool, int, float, str)
        as_text = {k: v if isinstance(v, plain) else str(v) for k, v in values.items()}
        event = _event(step=0)
        # TensorBoard has its own copy of the messages' classes.
        event.summary.MergeFromString(api.hparams_pb(as_text).SerializeToString())
        self._write(part, event)

    def _write(self, part, event):
        def write():
            writer = self._writers.get(part) or self._open(part)
            writer.write(event.SerializeToString())
            writer.flush()

        self._try(write)

    def _open(self, part):
        folder = self.directory / part
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        writer = self._writers[part] = tf.io.TFRecordWriter(str(folder / name))
        writer.write(_event(file_version="brain.Event:2").SerializeToString())
        return writer

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


def _event(**fields):
    return tf.compat.v1.Event(wall_time=time.time(), **fields)


def _cut(path: Path, last_step: int) -> set[int]:
    """Drops the events after a step from a file; returns the steps of its scalars."""
    kept, steps = [], set()
    try:
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            if event.step <= last_step:
                kept.append(record.numpy())
                scalars = [v for v in event.summary.value if v.HasField("simple_value")]
                steps |= {event.step} if scalars else set()
    except tf.errors.DataLossError:
        pass  # A run that was killed may have left half an event at the end.
    partial = path.with_name(f".partial.{path.name}")
    with tf.io.TFRecordWriter(str(partial)) as writer:
        for record in kept:
            writer.write(record)
    partial.replace(path)
    return steps
