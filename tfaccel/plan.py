"""The length of a run, and where its epochs begin and end."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

from tfaccel import fields
from tfaccel.errors import UserError
from tfaccel.fields import Duration, PositiveInt, RunLength


@dataclasses.dataclass(frozen=True)
class Plan:
    """The length of a run, in steps and epochs.

    Args:
        total_steps: Optimizer updates of the whole run.
        steps_per_epoch: Examples divided by the global batch size, exactly.
        log_steps: Steps between log rows within an epoch.
    """

    total_steps: int
    steps_per_epoch: Fraction
    log_steps: int = 0

    @property
    def epochs(self) -> int:
        """How many epochs the run touches."""
        return self.epoch_at(self.total_steps - 1) + 1

    def steps(self, duration: str) -> int:
        """Returns a duration such as "3ep", "500st" or "20%" in steps."""
        return fields.duration_steps(
            duration, steps_per_epoch=self.steps_per_epoch, total_steps=self.total_steps
        )

    def epoch_at(self, step: int) -> int:
        """Returns the epoch, from 0, that a step belongs to."""
        return int(step / self.steps_per_epoch)

    def epoch_end(self, epoch: int) -> int:
        """Returns the step after the last of an epoch."""
        return min(self.total_steps, math.ceil((epoch + 1) * self.steps_per_epoch))

    def epoch_start(self, epoch: int) -> int:
        """Returns the first step of an epoch."""
        return 0 if epoch == 0 else self.epoch_end(epoch - 1)


def check(*, duration: RunLength, global_batch_size: PositiveInt, log_every: Duration) -> None:
    """Refuses a run of no length."""
    del global_batch_size, log_every
    if float(duration[:-2]) == 0:
        raise UserError(f"received duration={duration}, expected more than 0.")


def build(
    num_examples: int,
    *,
    duration: RunLength = "10ep",
    global_batch_size: PositiveInt = 128,
    log_every: Duration = "50st",
) -> Plan:
    """Returns the length of a run.

    Args:
        num_examples: Training examples.
        duration: How long to train, such as "3ep" or "500st".
        global_batch_size: Examples a step takes, over all replicas and
            micro-steps.
        log_every: How often to log within an epoch.

    Raises:
        UserError: If a batch is larger than the data.

    Example:
        >>> build(101, duration="3ep", global_batch_size=10).total_steps
        31
    """
    if global_batch_size > num_examples:
        raise UserError(
            f"received global_batch_size={global_batch_size} for {num_examples} training "
            f"examples, expected at most that many."
        )
    per_epoch = Fraction(num_examples, global_batch_size)
    total = fields.duration_steps(duration, steps_per_epoch=per_epoch)
    log_steps = fields.duration_steps(log_every, steps_per_epoch=per_epoch, total_steps=total)
    return Plan(total, per_epoch, log_steps)


def check_batch(global_batch_size: int, replicas: int, accumulation: int) -> None:
    """Refuses a batch that replicas and micro-steps cannot share out evenly.

    Raises:
        UserError: With the nearest batch that they can.
    """
    parts = replicas * accumulation
    if global_batch_size % parts:
        raise UserError(
            f"received global_batch_size={global_batch_size}, expected a multiple of "
            f"replicas x accumulation = {replicas} x {accumulation}: try "
            f"{max(1, round(global_batch_size / parts)) * parts}."
        )
