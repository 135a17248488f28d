"""Which sparsity is due at which step: TFMOT's schedules over a run."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable

import numpy as np

from tfaccel.errors import UserError
from tfaccel.lazy import tf
from tfaccel.plan import Plan
from tfaccel.pruning import tfmot


@dataclasses.dataclass(frozen=True)
class Timetable:
    """The steps at which masks change, with each target's sparsity there.

    Args:
        steps: In order; an update at step s comes after s optimizer updates.
        sparsities: By target, one number a step.
    """

    steps: list[int]
    sparsities: dict[float, np.ndarray]

    def updates_by(self, step: int) -> int:
        """Returns how many updates are due by a step."""
        return bisect.bisect_right(self.steps, step)

    def next_after(self, step: int) -> int | None:
        """Returns the next step at which masks change, or None."""
        done = self.updates_by(step)
        return self.steps[done] if done < len(self.steps) else None

    @property
    def target_step(self) -> int:
        """The step from which on all targets are met."""
        met = [values >= np.float32(goal) for goal, values in self.sparsities.items()]
        return self.steps[int(np.argmax(np.all(met, axis=0)))]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What was asked for, before the run's length is known; see `build`."""

    name: str
    initial_sparsity: float
    power: float
    begin: str
    end: str
    frequency: str

    def over(self, plan: Plan, targets: Iterable[float]) -> Timetable:
        """Returns the timetable of a run.

        Masks change at `begin`, each `frequency` after it, and at `end`: TFMOT would
        leave `end` out where it is no multiple, and with it the target.

        Args:
            plan: The run's length.
            targets: The final sparsities.

        Raises:
            UserError: If the run is too short for it.
        """
        begin, end = plan.steps(self.begin), plan.steps(self.end)
        frequency = max(1, plan.steps(self.frequency))
        self._check(begin, end)
        steps = sorted({*range(begin, end, frequency), end})
        values = {goal: self._sparsities(goal, begin, end, steps) for goal in set(targets)}
        if end > plan.total_steps:
            goal = max(values)
            reached = [step for step in steps if step <= plan.total_steps]
            there = values[goal][len(reached) - 1] if reached else 0.0
            raise UserError(
                f"received pruning.end={self.end} = step {end}, but the run has "
                f"{plan.total_steps} steps: at step {plan.total_steps} sparsity would be "
                f"{there:.2f}, asked {goal:.2f}. Use {plan.total_steps}st or less."
            )
        return Timetable(steps, values)

    def _check(self, begin, end):
        if begin > end or (begin == end and self.name == "polynomial"):
            raise UserError(
                f"received pruning.begin={self.begin} = step {begin} and pruning.end="
                f"{self.end} = step {end}, expected begin before end."
            )
        if float(self.frequency.rstrip("estp%")) == 0:
            raise UserError(f"received pruning.frequency={self.frequency}, expected above 0.")

    def _sparsities(self, goal, begin, end, steps):
        schedules = tfmot.load().sparsity.keras
        if self.name == "constant":
            schedule = schedules.ConstantSparsity(goal, begin, end)
        else:
            arguments = (self.initial_sparsity, goal, begin, end, self.power)
            schedule = schedules.PolynomialDecay(*arguments)
        # TFMOT asks which steps are due as well; that is `steps`, here.
        _, sparsity = schedule(tf.constant(steps))
        return np.broadcast_to(sparsity.numpy(), len(steps))
