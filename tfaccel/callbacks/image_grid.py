"""What the model sees, and what it gets most wrong, as pictures in TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from tfaccel.event_files import EventLog


class ImageGrid(keras.callbacks.Callback):
    """Writes a grid of inputs once, and a grid of the worst mistakes each epoch.

    Mistakes are looked for among a few fixed examples, at the cost of one forward
    pass over them an epoch.

    Args:
        log: Where to write: a folder, or an `EventLog` that others use, too.
        inputs: Images as they enter the training, augmented: [n, height, width,
            channels], or a function that returns them; None for no such grid.
        examples: (images as the model takes them, labels [n]) to find mistakes in.
        columns: Pictures in a row of the grid.
        first_step: Steps done before this call of fit.

    Example:
        grid = tfaccel.callbacks.ImageGrid("events", inputs=x[:32], examples=(x, y))
        model.fit(x, y, callbacks=[grid])
    """

    chief_only = True
    remembered = ()

    def __init__(
        self,
        log: str | Path | EventLog,
        *,
        inputs: np.ndarray | Callable[[], np.ndarray] | None = None,
        examples: tuple[np.ndarray, np.ndarray] | None = None,
        columns: int = 8,
        first_step: int = 0,
    ):
        super().__init__()
        self._log = log if isinstance(log, EventLog) else EventLog(log)
        self._inputs, self._examples = inputs, examples
        self._columns = columns
        self.step = first_step

    def on_train_begin(self, logs=None):
        """Writes the inputs, unless a run goes on."""
        if self._inputs is not None and not self.step:
            images = self._inputs() if callable(self._inputs) else self._inputs
            self._write("inputs", images)

    def on_train_batch_begin(self, batch, logs=None):
        """Notes where the coming steps start."""
        self._batch_start = batch

    def on_train_batch_end(self, batch, logs=None):
        """Counts steps."""
        self.step += batch + 1 - self._batch_start

    def on_epoch_end(self, epoch, logs=None):
        """Writes the mistakes of which the model is most certain."""
        if self._examples is None:
            return
        images, labels = self._examples
        outputs = keras.ops.convert_to_numpy(self.model(images, training=False))
        predictions, certainty = outputs.argmax(-1), outputs.max(-1)
        worst = np.argsort(np.where(predictions != labels, -certainty, np.inf), kind="stable")
        worst = worst[: np.count_nonzero(predictions != labels)][: self._columns**2]
        if len(worst):
            self._write("worst_mistakes", np.asarray(images)[worst])

    def _write(self, name, images):
        self._log.image("train", name, grid(images, self._columns), self.step)


def grid(images: np.ndarray, columns: int) -> np.ndarray:
    """Returns one uint8 image of many, row by row, one pixel apart.

    Args:
        images: [n, height, width, channels]; numbers other than uint8 are stretched
            from their smallest to 0 and from their greatest to 255.
        columns: Images in a row.
    """
    images = _uint8(np.asarray(images))
    count, height, width, channels = images.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    cells = np.zeros((rows * columns, height + 1, width + 1, channels), np.uint8)
    cells[:count, :height, :width] = images
    cells = cells.reshape(rows, columns, height + 1, width + 1, channels)
    sheet = cells.transpose(0, 2, 1, 3, 4).reshape(rows * (height + 1), -1, channels)
    return sheet[:-1, :-1]


def _uint8(images: np.ndarray) -> np.ndarray:
    if images.dtype == np.uint8:
        return images
    low, high = images.min(), images.max()
    return ((images - low) * (255 / max(high - low, 1e-12))).round().astype(np.uint8)
