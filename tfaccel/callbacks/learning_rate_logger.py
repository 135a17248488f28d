"""The learning rate, in the logs of each epoch."""

import keras

from tfaccel.callbacks.measurement import Measurement


class LearningRateLogger(Measurement):
    """Adds the optimizer's learning rate to the logs of each epoch.

    It is the rate of the next step, whether it is a number, a schedule, or set by
    another callback.

    Example:
        logger = tfaccel.callbacks.LearningRateLogger()
        history = model.fit(x, y, callbacks=[logger])
        print(history.history["learning_rate"])
    """

    def latest(self) -> dict[str, float]:
        """Returns {"learning_rate": ...}."""
        rate = keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
        return {"learning_rate": float(rate)}
