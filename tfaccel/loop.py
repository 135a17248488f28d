"""fit and evaluate: our own step, driven through stock Keras callbacks.

Many steps run in one compiled call. Each participant (epoch end, checkpoint,
log) states its next step, and the loop cuts there.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from fractions import Fraction

from tfaccel import callback_state, fields, step
from tfaccel.checkpoint import Checkpointer
from tfaccel.data.pipeline import EvaluationData, TrainingData
from tfaccel.errors import UserError
from tfaccel.fields import Duration, PositiveInt, RunLength
from tfaccel.lazy import keras, tf
from tfaccel.log import logger

# A compiled call lasts at most about this long, so that Ctrl-C, logs and
# time limits are answered soon.
_CALL_SECONDS = 1.0


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
        epoch = int(step / self.steps_per_epoch)
        return epoch if step < self.epoch_end(epoch) else epoch + 1

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


def plan(
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
        >>> plan(101, duration="3ep", global_batch_size=10).total_steps
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


def fit(
    model: keras.Model,
    data: TrainingData,
    plan: Plan,
    strategy: tf.distribute.Strategy | None = None,
    *,
    validation: EvaluationData | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    checkpointer: Checkpointer | None = None,
    jit: bool = False,
    accumulation: int = 1,
) -> keras.callbacks.History:
    """Trains a compiled Keras model; goes on from the newest checkpoint, if any.

    Args:
        model: A compiled model, made in `strategy.scope()`, with its metrics as
            `weighted_metrics`.
        data: The training batches.
        plan: How long to train.
        strategy: Where the model lives; one device if None.
        validation: What to evaluate on at the end of each epoch.
        callbacks: Stock Keras callbacks or ours. Batch methods are called once
            a compiled call, as with Keras's `steps_per_execution`.
        checkpointer: Saves the run, and says where to go on.
        jit: Compile with XLA, per replica.
        accumulation: Micro-steps a step.

    Returns:
        Keras's History: the metrics at each epoch's end.

    Raises:
        UserError: If the batch cannot be shared out, or a callback waits for a
            metric that will not exist.

    Example:
        data = TrainingData(source, seed=0, global_batch_size=128)
        history = tfaccel.fit(model, data, plan(len(source), duration="3ep"))
    """
    strategy = strategy or tf.distribute.get_strategy()
    _check_batch(data.global_batch_size, strategy.num_replicas_in_sync, accumulation)
    newest = checkpointer.newest() if checkpointer else None
    state = checkpointer.read_state(newest) if newest else {"step": 0}
    training = step.TrainingStep(model, strategy, jit=jit, accumulation=accumulation)
    iterator = _iterator(strategy, lambda shard: data.dataset(state["step"], shard))
    training.trace(iterator)
    _check_callbacks(model, callbacks, validation is not None)
    if newest:
        checkpointer.restore(newest, _all_variables(model))
    step.separate_dropout(model, strategy)
    run = _Run(model, plan, strategy, training, iterator, checkpointer, state["step"])
    run.evaluation = step.EvaluationStep(model, strategy, jit=jit)
    run.validation = validation
    run.start_callbacks(callbacks)
    if newest:
        callback_state.restore(run.callbacks.callbacks, newest, state["callbacks"])
    return run.train()


def evaluate(
    model: keras.Model,
    data: EvaluationData,
    strategy: tf.distribute.Strategy | None = None,
    *,
    jit: bool = False,
) -> dict[str, float]:
    """Returns a compiled model's loss and metrics on every example once.

    Args:
        model: As for `fit`.
        data: What to evaluate on.
        strategy: Where the model lives; one device if None.
        jit: Compile with XLA, per replica.

    Example:
        tfaccel.evaluate(model, EvaluationData(splits.test, 128))["accuracy"]
    """
    strategy = strategy or tf.distribute.get_strategy()
    _check_batch(data.global_batch_size, strategy.num_replicas_in_sync, 1)
    silent = keras.callbacks.CallbackList([], model=model)
    return _evaluate(step.EvaluationStep(model, strategy, jit=jit), data, silent)


class _Run:
    """The state of one call of `fit`."""

    def __init__(self, model, plan, strategy, training, iterator, checkpointer, first_step):
        self.model = model
        self.plan = plan
        self.strategy = strategy
        self.training = training
        self.iterator = iterator
        self.checkpointer = checkpointer
        self.step = first_step
        self.saved_step = first_step if checkpointer and checkpointer.newest() else None
        self.pace = _Pace()

    def start_callbacks(self, callbacks):
        self.model.stop_training = False
        self.callbacks = keras.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            model=self.model,
            epochs=self.plan.epochs,
            steps=math.ceil(self.plan.steps_per_epoch),
            verbose=0,
        )
        participants = [*self.callbacks.callbacks, self.checkpointer]
        self.participants = [p for p in participants if hasattr(p, "next_boundary")]
        self.callbacks.on_train_begin()

    def train(self):
        logs = {}
        while self.step < self.plan.total_steps and not self.model.stop_training:
            logs = self.train_epoch(self.plan.epoch_at(self.step))
        step.average_statistics(self.model, self.strategy)
        if self.checkpointer and self.saved_step != self.step:
            self.save()
        self.callbacks.on_train_end(logs)
        return self.model.history

    def train_epoch(self, epoch):
        start, end = self.plan.epoch_start(epoch), self.plan.epoch_end(epoch)
        self.callbacks.on_epoch_begin(epoch)
        if self.step == start:
            self.model.reset_metrics()
        logs = {}
        while self.step < end and not self.model.stop_training:
            count = self.boundary(end) - self.step
            self.callbacks.on_train_batch_begin(self.step - start)
            with self.pace.timed(count):
                self.training(self.iterator, count)
                logs = _logs(self.model)
            self.step += count
            self.callbacks.on_train_batch_end(self.step - start - 1, logs)
            if self.step < end and self.due():
                self.save()
        logs = {**logs, **self.validate()}
        self.callbacks.on_epoch_end(epoch, logs)
        if self.due(epoch + 1 if self.step == end else None):
            self.save()
        return logs

    def boundary(self, end):
        stated = [p.next_boundary(self.step) for p in self.participants]
        return min([end, self.step + self.pace.steps, *filter(None, stated)])

    def validate(self):
        step.average_statistics(self.model, self.strategy)
        if self.validation is None:
            return {}
        logs = _evaluate(self.evaluation, self.validation, self.callbacks)
        return {f"val_{name}": value for name, value in logs.items()}

    def due(self, epochs_ended=None):
        return bool(self.checkpointer) and self.checkpointer.due(self.step, epochs_ended)

    def save(self):
        step.average_statistics(self.model, self.strategy)
        saved, arrays = callback_state.collect(self.callbacks.callbacks)
        state = {"step": self.step, "callbacks": saved}
        self.checkpointer.save(_all_variables(self.model), state, arrays)
        self.saved_step = self.step


class _Pace:
    """How many steps fit in a compiled call of about a second."""

    def __init__(self):
        self.steps = 1

    def timed(self, count):
        return _Timer(lambda seconds: self._set(seconds / count))

    def _set(self, seconds_per_step):
        self.steps = max(1, int(_CALL_SECONDS / max(seconds_per_step, 1e-6)))


class _Timer:
    def __init__(self, done):
        self.done = done

    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *error):
        self.done(time.perf_counter() - self.start)


def _evaluate(evaluation, data, callbacks) -> dict[str, float]:
    model, pace, done = evaluation.model, _Pace(), 0
    iterator = _iterator(evaluation.strategy, data.dataset)
    callbacks.on_test_begin()
    model.reset_metrics()
    logs = {}
    while done < data.steps:
        count = min(pace.steps, data.steps - done)
        callbacks.on_test_batch_begin(done)
        with pace.timed(count):
            evaluation(iterator, count)
            logs = _logs(model)
        done += count
        callbacks.on_test_batch_end(done - 1, logs)
    callbacks.on_test_end(logs)
    return logs


def _iterator(strategy, dataset_of_shard):
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        return iter(strategy.distribute_datasets_from_function(dataset_of_shard))
    return iter(dataset_of_shard(None))


def _logs(model) -> dict[str, float]:
    return {name: float(value) for name, value in model.get_metrics_result().items()}


def _all_variables(model) -> list:
    groups = (model.variables, model.optimizer.variables, model.metrics_variables)
    return list({id(v): v for group in groups for v in group}.values())


def _check_batch(size: int, replicas: int, accumulation: int) -> None:
    parts = replicas * accumulation
    if size % parts:
        raise UserError(
            f"received global_batch_size={size}, expected a multiple of replicas x "
            f"accumulation = {replicas} x {accumulation}: try "
            f"{max(1, round(size / parts)) * parts}."
        )
    logger.info(
        "global_batch_size: %d = %d per replica x %d replica(s) x %d micro-step(s)",
        size, size // parts, replicas, accumulation,
    )  # fmt: skip


def _check_callbacks(model, callbacks, has_validation: bool) -> None:
    names = list(model.get_metrics_result())
    names += [f"val_{name}" for name in names] if has_validation else []
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    scheduled = isinstance(optimizer.get_config()["learning_rate"], dict)
    sets_rate = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
    for callback in callbacks:
        kind, monitor = type(callback).__name__, getattr(callback, "monitor", None)
        if monitor is not None and monitor not in names and _needs_monitor(callback):
            raise UserError(
                f"{kind} monitors {monitor!r}, which this run will not have, expected one "
                f"of {', '.join(names)}."
                + ("" if has_validation else " There is no validation data.")
            )
        if scheduled and isinstance(callback, sets_rate):
            raise UserError(
                f"{kind} sets the learning rate, but the optimizer has a schedule: use "
                "schedule.name=constant without warm-up, or leave the callback out."
            )


def _needs_monitor(callback) -> bool:
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_best_only
    return True
