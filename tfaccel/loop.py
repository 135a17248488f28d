"""fit and evaluate: our own step, driven through stock Keras callbacks.

Many steps run in one compiled call. Each participant (epoch end, checkpoint,
log) states its next step, and the loop cuts there.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence

from tfaccel import callback_state, input_wait, step
from tfaccel.checkpoint import Checkpointer
from tfaccel.data.pipeline import EvaluationData, TrainingData
from tfaccel.errors import UserError
from tfaccel.lazy import keras, tf
from tfaccel.log import logger
from tfaccel.plan import Plan, check_batch

# A compiled call lasts at most about this long, so that Ctrl-C, logs and
# time limits are answered soon.
_CALL_SECONDS = 1.0


def fit(
    model: keras.Model,
    data: TrainingData,
    plan: Plan,
    *,
    strategy: tf.distribute.Strategy | None = None,
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
        length = tfaccel.plan.build(len(source), duration="3ep")
        history = tfaccel.fit(model, data, length)
    """
    strategy = strategy or tf.distribute.get_strategy()
    check_batch(data.global_batch_size, strategy.num_replicas_in_sync, accumulation)
    logger.info(
        "global_batch_size: %d = %d per replica x %d replica(s) x %d micro-step(s)",
        data.global_batch_size,
        data.global_batch_size // strategy.num_replicas_in_sync // accumulation,
        strategy.num_replicas_in_sync,
        accumulation,
    )
    newest = checkpointer.newest() if checkpointer else None
    state = checkpointer.read_state(newest) if newest else {"step": 0}
    training = step.TrainingStep(model, strategy, jit=jit, accumulation=accumulation)
    iterator = iter(_dataset(strategy, lambda shard: data.dataset(state["step"], shard)))
    # Callbacks get the model before the step is traced: GradientNorms joins it.
    callback_list = _callback_list(callbacks, model, plan)
    logger.info("building the training step")
    start = time.perf_counter()
    training.trace(iterator)  # makes every variable, so that all can be restored
    tracing = time.perf_counter() - start
    _check_callbacks(model, callbacks, validation is not None)
    if newest:
        checkpointer.restore(newest, _all_variables(model))
    step.separate_dropout(model, strategy)
    callback_list.on_train_begin()
    if newest:
        # Only now: on_train_begin, above, resets callbacks.
        callback_state.restore(callback_list.callbacks, newest, state["callbacks"])
        model.stop_training = state["stopped"]
    _tell_spent(callback_list, "compile", tracing)
    run = _Run(training, iterator, plan, callback_list, checkpointer, state["step"])
    if validation is not None:
        evaluation = step.EvaluationStep(model, strategy, jit=jit)
        dataset = _dataset(strategy, validation.dataset)  # once: tracing it takes a while
        run.validate = lambda: _evaluate(evaluation, dataset, validation.steps, callback_list)
    return run.train()


def evaluate(
    model: keras.Model,
    data: EvaluationData,
    *,
    strategy: tf.distribute.Strategy | None = None,
    jit: bool = False,
) -> dict[str, float]:
    """Returns a compiled model's loss and metrics on every example once.

    Args:
        model: As for `fit`.
        data: What to evaluate on.
        strategy: Where the model lives; one device if None.
        jit: Compile with XLA, per replica.

    Example:
        tfaccel.loop.evaluate(model, EvaluationData(splits.test, 128))["accuracy"]
    """
    strategy = strategy or tf.distribute.get_strategy()
    check_batch(data.global_batch_size, strategy.num_replicas_in_sync, 1)
    silent = keras.callbacks.CallbackList([], model=model)
    evaluation = step.EvaluationStep(model, strategy, jit=jit)
    return _evaluate(evaluation, _dataset(strategy, data.dataset), data.steps, silent)


class _Run:
    """One call of `fit`: from its first step to the plan's last."""

    def __init__(self, training, iterator, plan, callbacks, checkpointer, first_step):
        self.training = training
        self.model = training.model
        self.iterator = iterator
        self.plan = plan
        self.callbacks = callbacks
        self.checkpointer = checkpointer
        self.step = self.saved_step = first_step
        self.pace = _Pace()
        everyone = [*callbacks.callbacks, checkpointer]
        self.participants = [p for p in everyone if hasattr(p, "next_boundary")]
        # ModelCheckpoint may save within an epoch.
        frequencies = [getattr(c, "save_freq", "epoch") for c in callbacks.callbacks]
        self.saves_within_epochs = any(frequency != "epoch" for frequency in frequencies)

    def validate(self):
        return {}

    def train(self):
        logs = {}
        while self.step < self.plan.total_steps and not self.model.stop_training:
            logs = self.train_epoch(self.plan.epoch_at(self.step))
        self.average_statistics()
        if self.checkpointer and self.checkpointer.enabled and self.saved_step != self.step:
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
            logs = self.train_steps(self.boundary(end) - self.step, self.step - start)
            if self.step < end and self.due():
                self.save()
        self.average_statistics()
        logs = {**logs, **{f"val_{name}": value for name, value in self.validate().items()}}
        self.callbacks.on_epoch_end(epoch, logs)
        if self.due(epochs_ended=epoch + 1 if self.step == end else None):
            self.save()
        return logs

    def train_steps(self, count, batch):
        """Runs some steps in one compiled call; `batch` counts from the epoch's start."""
        self.callbacks.on_train_batch_begin(batch)
        with self.pace.timed(count):
            metrics, times = self.training(self.iterator, count)
            logs = {name: float(value) for name, value in metrics.items()}
        waited = input_wait.seconds(times.numpy(), time.time())
        _tell_spent(self.callbacks, "input_wait", waited, instead_of="step")
        self.step += count
        if self.saves_within_epochs:
            self.average_statistics()
        self.callbacks.on_train_batch_end(batch + count - 1, logs)
        return logs

    def boundary(self, end):
        stated = [p.next_boundary(self.step) for p in self.participants]
        return min([end, self.step + self.pace.steps, *filter(None, stated)])

    def average_statistics(self):
        step.average_statistics(self.model, self.training.strategy)

    def due(self, epochs_ended=None):
        return bool(self.checkpointer) and self.checkpointer.due(self.step, epochs_ended)

    def save(self):
        start = time.perf_counter()
        self.average_statistics()
        saved, arrays = callback_state.collect(self.callbacks.callbacks)
        state = {
            "step": self.step,
            "stopped": bool(self.model.stop_training),
            "callbacks": saved,
        }
        self.checkpointer.save(_all_variables(self.model), state, arrays)
        self.saved_step = self.step
        spent = time.perf_counter() - start
        _tell_spent(self.callbacks, "checkpoint", spent, instead_of="other")


class _Pace:
    """How many steps fit in a compiled call of about a second."""

    def __init__(self):
        self.steps = 1

    @contextlib.contextmanager
    def timed(self, count: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds_per_step = (time.perf_counter() - start) / count
        self.steps = max(1, int(_CALL_SECONDS / max(seconds_per_step, 1e-6)))


def _callback_list(callbacks, model, plan: Plan) -> keras.callbacks.CallbackList:
    model.stop_training = False
    return keras.callbacks.CallbackList(
        list(callbacks),
        add_history=True,
        model=model,
        epochs=plan.epochs,
        steps=math.ceil(plan.steps_per_epoch),
        verbose=0,
    )


def _tell_spent(callback_list, part: str, seconds: float, instead_of: str = "") -> None:
    """Tells callbacks that ask (TimeSplit) of time that Keras's methods do not show."""
    for callback in callback_list.callbacks:
        if hasattr(callback, "on_spent"):
            callback.on_spent(part, seconds, instead_of)


def _evaluate(evaluation, dataset, steps: int, callbacks) -> dict[str, float]:
    model, pace, done = evaluation.model, _Pace(), 0
    iterator = iter(dataset)
    callbacks.on_test_begin()
    model.reset_metrics()
    logs = {}
    while done < steps:
        count = min(pace.steps, steps - done)
        callbacks.on_test_batch_begin(done)
        with pace.timed(count):
            evaluation(iterator, count)
            logs = _logs(model)
        done += count
        callbacks.on_test_batch_end(done - 1, logs)
    callbacks.on_test_end(logs)
    return logs


def _dataset(strategy, dataset_of_shard):
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        return strategy.distribute_datasets_from_function(dataset_of_shard)
    return dataset_of_shard(None)


def _logs(model) -> dict[str, float]:
    return {name: float(value) for name, value in model.get_metrics_result().items()}


def _all_variables(model) -> list:
    groups = (model.variables, model.optimizer.variables, model.metrics_variables)
    return list({id(v): v for group in groups for v in group}.values())


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
