"""fit and evaluate: our own step, driven through stock Keras callbacks.

Many steps run in one compiled call. Each participant (epoch end, checkpoint,
log) states its next step, and the loop cuts there.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence

from tfaccel import (
    callback_state,
    inference_step,
    input_wait,
    pruning,
    replica_state,
    step,
    termination,
)
from tfaccel import ema as ema_lib
from tfaccel import replicas as replicas_lib
from tfaccel.checkpoint import Checkpointer
from tfaccel.data import mixing
from tfaccel.data.pipeline import EvaluationData, TrainingData
from tfaccel.data.source import read_errors
from tfaccel.errors import UserError
from tfaccel.lazy import keras, tf
from tfaccel.log import logger
from tfaccel.plan import Plan, check_batch

# A compiled call lasts at most about this long, so that Ctrl-C, logs and
# time limits are answered soon.
_CALL_SECONDS = 1.0
# So many steps a second are so short that looking at the clock in each would show.
_SHORT_STEPS = 1000


@read_errors()
def fit(
    model: keras.Model,
    data: TrainingData,
    plan: Plan,
    *,
    strategy: tf.distribute.Strategy | None = None,
    validation: EvaluationData | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    checkpointer: Checkpointer | None = None,
    options: step.Options | None = None,
    ema: ema_lib.Average | None = None,
    request: termination.Request | None = None,
) -> keras.callbacks.History:
    """Trains a compiled Keras model; goes on from the newest checkpoint, if any.

    `tfaccel.fit` is the same for anybody's dataset.

    Args:
        model: A compiled model, made in the strategy's scope.
        data: The training batches.
        plan: How long to train.
        strategy: Where the model lives: a strategy, `Replicas`, or None for one
            device.
        validation: What to evaluate on at the end of each epoch.
        callbacks: Stock Keras callbacks or ours. Batch methods are called once
            a compiled call, as with Keras's `steps_per_execution`.
        checkpointer: Saves the run, and says where to go on.
        options: How to run steps; see `tfaccel.step.choose`.
        ema: The average of weights to keep; see `tfaccel.ema.build`.
        request: A request to end that may be made meanwhile, to one worker or more:
            all save the run and raise `tfaccel.termination.Terminated`.

    Returns:
        Keras's History: the metrics at each epoch's end.

    Raises:
        UserError: If the batch cannot be shared out, the loss does not take soft
            labels that the data have, or a callback waits for a metric that will
            not exist.

    Example:
        data = TrainingData(source, seed=0, global_batch_size=128)
        length = tfaccel.plan.build(len(source), duration="3ep")
        history = tfaccel.loop.fit(model, data, length)
    """
    replicas, options = replicas_lib.of(strategy), options or step.Options()
    if isinstance(data, TrainingData):
        check_batch(data.global_batch_size, replicas.count, options.accumulation)
        if data.mixing is not None:
            mixing.check_loss(model)
    _log_batch(data.global_batch_size, replicas.count, options.accumulation)
    for callback in callbacks:
        if hasattr(callback, "prepare"):  # such as a Pruner, which refuses a short run
            callback.prepare(plan, callbacks)
    newest = checkpointer.newest() if checkpointer else None
    state = checkpointer.read_state(newest) if newest else {"step": 0}
    replicas.check_alike(state["step"], "the newest checkpoint")
    training = step.TrainingStep(model, replicas, options, ema.update if ema else None)
    dataset = replicas.dataset(lambda shard: data.dataset(state["step"], shard))
    iterator = replicas.iterator(dataset)
    # Callbacks get the model before the step is traced: GradientNorms joins it.
    callback_list = _callback_list(callbacks, model, plan)
    logger.info("building the training step")
    start = time.perf_counter()
    step.build_metrics(model, replicas, _element_spec(dataset, data))
    evaluation = validation and _Evaluation(model, replicas, validation, options.jit)
    training.trace(iterator)  # makes every variable, so that all can be restored
    tracing = time.perf_counter() - start
    _check_callbacks(model, callbacks, validation is not None)
    saved = _Saved(model, replicas, checkpointer, ema)
    if newest:
        checkpointer.restore(newest, saved.variables)
    replicas.start_alike(saved.variables)
    replica_state.separate_dropout(model, replicas)
    callback_list.on_train_begin()
    if newest:
        # Only now: on_train_begin, above, resets callbacks.
        callback_state.restore(callback_list.callbacks, newest, state["callbacks"])
        model.stop_training = state["stopped"]
    _tell_spent(callback_list, "compile", tracing)
    run = _Run(training, iterator, plan, callback_list, saved, evaluation, request)
    return run.train(state["step"])


@read_errors()
def evaluate(
    model: keras.Model,
    data: EvaluationData,
    *,
    strategy: tf.distribute.Strategy | None = None,
    jit: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, float]:
    """Returns a compiled model's loss and metrics on every example once.

    Args:
        model: As for `fit`.
        data: What to evaluate on.
        strategy: Where the model lives; one device if None.
        jit: Compile with XLA, per replica.
        callbacks: Keras callbacks, for their test methods.

    Example:
        tfaccel.loop.evaluate(model, EvaluationData(splits.test, 128))["accuracy"]
    """
    replicas = replicas_lib.of(strategy)
    if isinstance(data, EvaluationData):
        check_batch(data.global_batch_size, replicas.count, 1)
    callback_list = keras.callbacks.CallbackList(list(callbacks), model=model)
    return _Evaluation(model, replicas, data, jit).run(callback_list)


class _Evaluation:
    """Evaluates one model on one dataset, again and again, with one graph."""

    def __init__(self, model, replicas, data, jit):
        self.step = inference_step.EvaluationStep(model, replicas, jit=jit)
        self.data = data
        # Once: tracing it takes a while.
        self.dataset = replicas.dataset(lambda shard: data.dataset(shard=shard))
        step.build_metrics(model, replicas, _element_spec(self.dataset, data))

    def run(self, callbacks) -> dict[str, float]:
        model, replicas, done = self.step.model, self.step.replicas, 0
        pace = _Pace()
        iterator = replicas.iterator(self.dataset)
        callbacks.on_test_begin()
        model.reset_metrics()
        logs = {}
        while done < self.data.steps:
            count = int(replicas.agree(min(pace.steps, self.data.steps - done))[0])
            callbacks.on_test_batch_begin(done)
            with pace.timed(count):
                metrics = self.step(iterator, count)
                logs = {name: float(value) for name, value in metrics.items()}
            done += count
            callbacks.on_test_batch_end(done - 1, logs)
        callbacks.on_test_end(logs)
        return logs


class _Saved:
    """All of a run's variables, and the checkpoints that hold them."""

    def __init__(self, model, replicas, checkpointer, ema):
        self.model = model
        self.replicas = replicas
        self.checkpointer = checkpointer
        self.ema = ema
        self.statistics = replica_state.MovingStatistics(model, replicas)

    @property
    def variables(self) -> list:
        model = self.model
        groups = [model.variables, model.optimizer.variables, model.metrics_variables]
        groups += [pruning.masks(model), self.ema.variables if self.ema else []]
        return list({id(v): v for group in groups for v in group}.values())

    @property
    def enabled(self) -> bool:
        return bool(self.checkpointer) and self.checkpointer.enabled

    def due(self, step_done, epochs_ended=None) -> bool:
        return bool(self.checkpointer) and self.checkpointer.due(step_done, epochs_ended)

    def save(self, step_done, callbacks):
        self.statistics.average()
        remembered, arrays = callback_state.collect(callbacks)
        state = {
            "step": step_done,
            "stopped": bool(self.model.stop_training),
            "callbacks": remembered,
        }
        self.checkpointer.save(self.variables, state, arrays, chief=self.replicas.chief)


class _Run:
    """One call of `fit`: from its first step to the plan's last."""

    def __init__(self, training, iterator, plan, callbacks, saved, evaluation, request):
        self.training = training
        self.model = training.model
        self.replicas = training.replicas
        self.iterator = iterator
        self.plan = plan
        self.callbacks = callbacks
        self.saved = saved
        self.evaluation = evaluation
        self.request = request or termination.Request()
        self.pace = _Pace()
        self.waiting = _Waiting()
        everyone = [*callbacks.callbacks, saved.checkpointer]
        self.participants = [p for p in everyone if hasattr(p, "next_boundary")]
        # ModelCheckpoint may save within an epoch.
        frequencies = [getattr(c, "save_freq", "epoch") for c in callbacks.callbacks]
        self.saves_within_epochs = any(frequency != "epoch" for frequency in frequencies)

    def train(self, first_step):
        self.step = self.saved_step = first_step
        logs = {}
        while self.step < self.plan.total_steps and not self.model.stop_training:
            logs = self.train_epoch(self.plan.epoch_at(self.step))
        self.average_statistics()
        if self.saved.enabled and self.saved_step != self.step:
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
            if self.step < end:
                self.save_if(self.saved.due(self.step))
        self.average_statistics()
        logs = {**logs, **{f"val_{name}": value for name, value in self.validate().items()}}
        self.callbacks.on_epoch_end(epoch, logs)
        self.agree_on_stopping()
        self.save_if(self.saved.due(self.step, epoch + 1 if self.step == end else None))
        return logs

    def train_steps(self, count, batch):
        """Runs some steps in one compiled call; `batch` counts from the epoch's start."""
        self.callbacks.on_train_batch_begin(batch)
        with self.pace.timed(count):
            outcome = self.training(self.iterator, count, self.waiting.due(self.pace))
            logs = {name: float(value) for name, value in outcome.metrics.items()}
        waited = self.waiting.seconds(outcome.times.numpy(), self.pace.seconds)
        _tell_spent(self.callbacks, "input_wait", waited, instead_of="step")
        _tell(self.callbacks, "on_learning_rate", outcome.learning_rate)
        self.step += count
        if self.saves_within_epochs:
            self.average_statistics()
        self.callbacks.on_train_batch_end(batch + count - 1, logs)
        self.agree_on_stopping()
        return logs

    def validate(self):
        if self.evaluation is None:
            return {}
        with ema_lib.evaluating(self.saved.ema):
            return self.evaluation.run(self.callbacks)

    def boundary(self, end):
        stated = [p.next_boundary(self.step) for p in self.participants]
        nearest = min([end, self.step + self.pace.steps, *filter(None, stated)])
        # All workers take the same steps together, though some have fewer callbacks.
        return int(self.replicas.agree(nearest)[0])

    def agree_on_stopping(self):
        """What one worker wants, all do: a step needs everybody."""
        wishes = float(not self.model.stop_training), float(not self.request.made)
        goes_on, unasked = self.replicas.agree(*wishes)
        self.model.stop_training = not goes_on
        self.asked_to_end = not unasked

    def save_if(self, due):
        """Saves; if somebody has asked for the end, in any case, and ends."""
        if due or (self.asked_to_end and self.saved.enabled):
            self.save()
        if self.asked_to_end:
            raise termination.Terminated

    def average_statistics(self):
        self.saved.statistics.average()

    def save(self):
        start = time.perf_counter()
        self.saved.save(self.step, self.callbacks.callbacks)
        self.saved_step = self.step
        spent = time.perf_counter() - start
        _tell_spent(self.callbacks, "checkpoint", spent, instead_of="other")


class _Pace:
    """How many steps fit in a compiled call of about a second."""

    def __init__(self):
        self.steps = 1
        self.seconds = 0.0

    @contextlib.contextmanager
    def timed(self, count: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - start
        self.steps = max(1, int(_CALL_SECONDS / max(self.seconds / count, 1e-6)))


class _Waiting:
    """How long calls waited for input; where steps are very short, of one call in ten."""

    def __init__(self):
        self.calls = 0
        self.share = 0.0

    def due(self, pace: _Pace) -> bool:
        self.calls += 1
        return pace.steps < _SHORT_STEPS or self.calls % 10 == 0

    def seconds(self, times, call_seconds: float) -> float:
        if not len(times):
            return self.share * call_seconds
        waited = min(input_wait.seconds(times, time.time()), call_seconds)
        self.share = waited / call_seconds
        return waited


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
    """Tells of time that Keras's methods do not show; see `TimeSplit`."""
    _tell(callback_list, "on_spent", part, seconds, instead_of)


def _tell(callback_list, method: str, *arguments) -> None:
    """Calls a method that some of our callbacks have beside Keras's."""
    for callback in callback_list.callbacks:
        if hasattr(callback, method):
            getattr(callback, method)(*arguments)


def _element_spec(dataset, data):
    """What one replica gets; a distributed dataset tells of all of them together."""
    return (dataset if isinstance(dataset, tf.data.Dataset) else data.dataset()).element_spec


def _log_batch(size, replicas, accumulation):
    if size is None:
        logger.info("%d replica(s) x %d micro-step(s) share each batch", replicas, accumulation)
        return
    each = size / replicas / accumulation
    logger.info(
        "global_batch_size: %d = %g per replica x %d replica(s) x %d micro-step(s)",
        size, each, replicas, accumulation,
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
