"""The callback that prunes: it changes masks and weights, together, when they are due."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from fractions import Fraction

import keras
import numpy as np

from tfaccel.errors import UserError
from tfaccel.log import logger
from tfaccel.plan import Plan
from tfaccel.pruning.kernels import masked
from tfaccel.pruning.selection import Rule
from tfaccel.pruning.timetable import Schedule


class Mask(keras.constraints.Constraint):
    """Keeps pruned weights at zero, after the constraint that the weight had before.

    It is no part of a layer's config, so a saved model does not hold it.

    Args:
        weight: The Keras variable it is for.
    """

    def __init__(self, weight: keras.Variable):
        self.inner = weight.constraint
        strategy = getattr(weight.value, "distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            self.kept = keras.Variable(
                np.ones(weight.shape, bool), dtype="bool", trainable=False, name="mask"
            )

    def __call__(self, w):
        """Returns the weights with the pruned ones zero."""
        w = w if self.inner is None else self.inner(w)
        # Not a product: -1 x 0 is -0.0, whose bytes are not zero, and inf x 0 is NaN.
        return keras.ops.where(self.kept, w, keras.ops.zeros_like(w))


class Pruner(keras.callbacks.Callback):
    """Prunes a model while it trains, in `tfaccel.fit` or Keras's own `fit`.

    Made by `tfaccel.pruning.prune` or `build`. A step is a batch of `fit`, counted over
    several calls of it.

    Args:
        model: A built model.
        rule: Which weights of which kernels to keep; see `tfaccel.pruning.selection`.
        schedule: When, before the run's length is known.
        plan: The run's length; if None, that of the first `fit`.
    """

    remembered = ("step", "done")

    def __init__(self, model, rule: Rule, schedule: Schedule, plan: Plan | None = None):
        super().__init__()
        self.rule = rule
        self.targets = rule.targets
        self.kernels = [target.kernel for target in rule.targets]
        self.schedule = schedule
        self.step = self.done = 0
        self.plan = self.timetable = None
        if plan is not None:
            self._schedule(plan)
        for kernel in self.kernels:
            if not isinstance(kernel.weight.constraint, Mask):
                kernel.weight.constraint = Mask(kernel.weight)
        # Compiled before, it would go on without the masks.
        if getattr(model, "train_function", None) is not None:
            model.make_train_function(force=True)

    @property
    def at_target(self) -> bool:
        """Whether the masks have reached the final sparsity."""
        due = self.timetable is not None and self.step >= self.timetable.target_step
        return due and self.done == self.timetable.updates_by(self.step)

    def prepare(self, plan: Plan, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Takes over the run's length; `tfaccel.fit` calls it with all its callbacks."""
        if plan != self.plan:
            self._schedule(plan)
        self.select(*callbacks)

    def select(self, *callbacks: keras.callbacks.Callback) -> tuple:
        """Returns callbacks whose choice of the best epoch waits for the target.

        EarlyStopping, and ModelCheckpoint with save_best_only, then see only epochs at
        the final sparsity: a denser model from before is no rival. Others are left as
        they are. `tfaccel.fit` does it by itself.

        Example:
            stopping = keras.callbacks.EarlyStopping(patience=3)
            model.fit(x, y, callbacks=[pruner, *pruner.select(stopping)])
        """
        for callback in callbacks:
            chooses = isinstance(callback, keras.callbacks.EarlyStopping) or (
                isinstance(callback, keras.callbacks.ModelCheckpoint)
                and callback.save_best_only
            )
            if chooses:
                callback.on_epoch_end = self._only_at_target(callback.on_epoch_end)
                callback.on_train_batch_end = self._only_at_target(callback.on_train_batch_end)
        return callbacks

    def next_boundary(self, step: int) -> int | None:
        """Returns the next step after `step` at which masks change."""
        return self.timetable.next_after(step)

    def on_train_begin(self, logs=None):
        """Learns the run's length, if nobody has said it."""
        if self.timetable is None:
            self._schedule(_plan_of(self.params))

    def on_epoch_begin(self, epoch, logs=None):
        """Counts the epochs that a stock `fit(initial_epoch=...)` leaves out."""
        if self.step == 0 and epoch:
            self.step = epoch * (self.params.get("steps") or 0)

    def on_train_batch_begin(self, batch, logs=None):
        """Notes where the coming steps start; prunes where that is due at the start."""
        self._first = batch
        self._update_if_due()

    def on_train_batch_end(self, batch, logs=None):
        """Prunes if it is due."""
        self.step += batch + 1 - self._first
        self._update_if_due()

    def on_train_end(self, logs=None):
        """Masks once more: Keras's own average of weights ends without constraints."""
        for kernel in self.kernels if self.done else ():
            weight = kernel.weight
            weight.assign(masked(weight, weight))

    def verify(self) -> None:
        """Refuses to call the model pruned if it is not.

        Raises:
            UserError: With the numbers, if a target is missed.
        """
        missed = self.rule.shortfalls([kernel.value() for kernel in self.kernels])
        if not missed:
            return
        goal = max(target.sparsity for target in self.targets)
        begun = self.timetable is not None
        why = (
            f"training stopped at step {self.step}, before the target is due at step "
            f"{self.timetable.target_step}"
            if begun and not self.at_target
            else "something has changed the weights since, or many have equal magnitude"
        )
        more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        raise UserError(
            f"the model does not have the sparsity {goal:g} that was asked for "
            f"({', '.join(missed[:3])}{more}): {why if begun else 'it was not trained'}."
        )

    def _schedule(self, plan):
        self.plan = plan
        self.timetable = self.schedule.over(plan, [t.sparsity for t in self.targets])
        steps = self.timetable.steps
        logger.info(
            "pruning: %d kernels of %s weights to %s, %d updates of the masks from step %d "
            "to %d of %d",
            len(self.kernels),
            f"{sum(math.prod(kernel.weight.shape) for kernel in self.kernels):,}",
            " and ".join(f"{goal:g}" for goal in sorted(self.timetable.sparsities)),
            len(steps),
            steps[0],
            steps[-1],
            plan.total_steps,
        )

    def _update_if_due(self):
        due = self.timetable.updates_by(self.step)
        if due > self.done:
            self._update(due - 1)
            self.done = due

    def _update(self, index):
        values = [kernel.weight.numpy() for kernel in self.kernels]
        now = [self.timetable.sparsities[target.sparsity][index] for target in self.targets]
        magnitudes = [np.asarray(value, np.float32) for value in values]
        masks = self.rule.masks(magnitudes, now)
        for kernel, value, kept in zip(self.kernels, values, masks, strict=True):
            if not kept.any():
                logger.warning("pruning: all weights of %s are pruned", kernel.path)
            # Together: a step in between would train on with one of them.
            kernel.weight.constraint.kept.assign(kept)
            kernel.weight.assign(np.where(kept, value, np.zeros_like(value)))

    def _only_at_target(self, method):
        def waiting(*args, **kwargs):
            if self.at_target:
                method(*args, **kwargs)

        return waiting


def _plan_of(params) -> Plan:
    """The length of a stock `fit`, as Keras tells its callbacks."""
    if not params.get("steps"):
        raise UserError(
            "Keras does not know how many steps an epoch has: give model.fit "
            "steps_per_epoch, or prune a plan, such as tfaccel.plan.Plan(total_steps, "
            "steps_per_epoch)."
        )
    return Plan(params["epochs"] * params["steps"], Fraction(params["steps"]))
