"""What callbacks that measure something have in common."""

import abc

import keras


class Measurement(keras.callbacks.Callback, abc.ABC):
    """A callback whose `latest()` others may ask, at a log or an epoch's end.

    At the end of each epoch it adds its values to Keras's logs, as Keras's own
    LearningRateScheduler does: History, CSVLogger and TensorBoard, which stand
    behind it in the list of callbacks, then show them.
    """

    remembered = ()

    @abc.abstractmethod
    def latest(self) -> dict[str, float]:
        """Returns the newest values by name; without those that are not known yet."""

    def on_epoch_end(self, epoch, logs=None):
        """Adds the newest values to the epoch's logs."""
        if logs is not None:
            logs.update(self.latest())
