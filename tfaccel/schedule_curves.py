"""The Keras schedule behind `tfaccel.schedules.build`."""

import math

import keras


@keras.saving.register_keras_serializable("tfaccel")
class WarmupThen(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up, then one of four shapes.

    Args:
        learning_rate: The rate at the end of the warm-up.
        warmup_steps: Steps of the warm-up.
        total_steps: The step at which the final share is reached.
        shape: "constant", "cosine", "linear" or "steps".
        final_share: Share of the rate at `total_steps`; not for "constant" and
            "steps".
        boundaries: For "steps": the steps at which the rate drops.
        factor: For "steps": what each drop multiplies the rate by.
    """

    def __init__(
        self,
        learning_rate,
        *,
        warmup_steps,
        total_steps,
        shape,
        final_share=0.0,
        boundaries=(),
        factor=0.1,
    ):
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.shape = shape
        self.final_share = final_share
        self.boundaries = list(boundaries)
        self.factor = factor

    def __call__(self, step):
        """Returns the float32 rate at a step."""
        step = keras.ops.cast(step, "float32")
        share = self._after_warmup(step)
        if self.warmup_steps:
            rising = (step + 1) / self.warmup_steps
            share = keras.ops.where(step < self.warmup_steps, rising, share)
        return self.learning_rate * share

    def _after_warmup(self, step):
        if self.shape == "constant":
            return keras.ops.ones_like(step)
        if self.shape == "steps":
            passed = [keras.ops.cast(step >= b, "float32") for b in self.boundaries]
            return keras.ops.power(self.factor, sum(passed))
        length = max(1, self.total_steps - self.warmup_steps)
        done = keras.ops.clip((step - self.warmup_steps) / length, 0.0, 1.0)
        left = 1 - done
        if self.shape == "cosine":
            left = 0.5 * (1 + keras.ops.cos(math.pi * done))
        return self.final_share + (1 - self.final_share) * left

    def get_config(self):
        """Returns the constructor's arguments."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "shape": self.shape,
            "final_share": self.final_share,
            "boundaries": self.boundaries,
            "factor": self.factor,
        }
