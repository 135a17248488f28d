import csv

import keras
import numpy as np
import pytest
import tiny

from tfaccel import loop, plan, step, termination
from tfaccel.checkpoint import Checkpointer
from tfaccel.errors import UserError

# 32 examples in batches of 8: four steps an epoch; 16 to validate on: two.
EPOCHS = 2
LENGTH = plan.build(32, duration=f"{EPOCHS}ep", global_batch_size=8, log_every="0st")


def data():
    return tiny.training(count=32), tiny.evaluation(count=16, seed=1)


def fit(model, callbacks=(), length=LENGTH, **kwargs):
    training, validation = data()
    return loop.fit(
        model, training, length, validation=validation, callbacks=callbacks, **kwargs
    )


def keras_fit(model, callbacks=()):
    """Keras's own fit on the same batches."""
    training, validation = data()
    x, y, _ = next(iter(validation.dataset().unbatch().batch(16)))
    return model.fit(
        training.dataset(),
        epochs=EPOCHS,
        steps_per_epoch=4,
        validation_data=(x, y),
        validation_batch_size=8,
        callbacks=list(callbacks),
        verbose=0,
    )


@pytest.fixture
def one_step_a_call(monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 0)


def recording(callback):
    """Makes a callback note each call it gets: (method, index, names of the logs)."""
    calls = []

    class Recording(type(callback)):
        pass

    def wrapped(name):
        def method(self, *args, **kwargs):
            logs = kwargs.get("logs", args[-1] if args else None)
            index = args[0] if args and isinstance(args[0], int) else None
            calls.append((name, index, tuple(sorted(logs or {}))))
            return getattr(super(Recording, self), name)(*args, **kwargs)

        return method

    moments = ("train", "epoch", "train_batch", "test", "test_batch")
    for name in (f"on_{moment}_{edge}" for moment in moments for edge in ("begin", "end")):
        setattr(Recording, name, wrapped(name))
    callback.__class__ = Recording
    return callback, calls


STOCK = {
    "EarlyStopping": lambda path: keras.callbacks.EarlyStopping("val_loss", patience=5),
    "ModelCheckpoint": lambda path: keras.callbacks.ModelCheckpoint(path / "best.keras"),
    "TensorBoard": lambda path: keras.callbacks.TensorBoard(path / "events"),
    "CSVLogger": lambda path: keras.callbacks.CSVLogger(path / "log.csv"),
    "ReduceLROnPlateau": lambda path: keras.callbacks.ReduceLROnPlateau("val_loss"),
    "LambdaCallback": lambda path: keras.callbacks.LambdaCallback(),
}


@pytest.mark.parametrize("name", STOCK)
def test_stock_callbacks_get_the_very_calls_of_keras_fit(name, tmp_path, one_step_a_call):
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    ours, our_calls = recording(STOCK[name](tmp_path / "ours"))
    theirs, their_calls = recording(STOCK[name](tmp_path / "theirs"))
    fit(tiny.model(), [ours])
    keras_fit(tiny.model(), [theirs])
    assert our_calls == their_calls
    metrics = ("accuracy", "loss")
    assert our_calls[0] == ("on_train_begin", None, ())
    assert our_calls[1] == ("on_epoch_begin", 0, ())
    assert our_calls[3] == ("on_train_batch_end", 0, metrics)
    with_validation = (*metrics, "val_accuracy", "val_loss")
    assert our_calls[-2] == ("on_epoch_end", 1, with_validation)
    assert our_calls[-1] == ("on_train_end", None, with_validation)


def test_history_is_that_of_keras_fit(one_step_a_call):
    ours, theirs = fit(tiny.model()), keras_fit(tiny.model())
    assert ours.epoch == theirs.epoch == [0, 1]
    assert set(ours.history) == set(theirs.history)
    for name, values in theirs.history.items():
        # The same sums in float32, reduced in another order.
        assert ours.history[name] == pytest.approx(values, abs=1e-5), name


def test_many_steps_a_call_end_at_the_epoch(monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 1e9)
    callback, calls = recording(keras.callbacks.LambdaCallback())
    fit(tiny.model(), [callback])
    # One step first, to learn the pace; then all that is left of each epoch.
    ends = [index for name, index, _ in calls if name == "on_train_batch_end"]
    begins = [index for name, index, _ in calls if name == "on_train_batch_begin"]
    assert (begins, ends) == ([0, 1, 0], [0, 3, 3])


def test_the_loop_cuts_where_a_participant_says(monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 1e9)
    callback, calls = recording(keras.callbacks.LambdaCallback())
    callback.next_boundary = lambda step: (step // 3 + 1) * 3
    fit(tiny.model(), [callback])
    ends = [index for name, index, _ in calls if name == "on_train_batch_end"]
    assert ends == [0, 2, 3, 1, 3]  # steps 1, 3, 4 | 6, 8


def never_better(**kwargs):
    """EarlyStopping for which no epoch after the first is an improvement."""
    return keras.callbacks.EarlyStopping("val_loss", min_delta=100, **kwargs)


def test_early_stopping_stops_and_restores_the_best_epoch():
    stopping = never_better(patience=2, restore_best_weights=True)
    model = tiny.model()
    length = plan.build(32, duration="20ep", global_batch_size=8)
    history = fit(model, [stopping], length)
    assert history.epoch == [0, 1, 2]
    _, validation = data()
    best = history.history["val_loss"][0]
    assert loop.evaluate(model, validation)["loss"] == pytest.approx(best, abs=1e-6)


def test_model_checkpoint_saves_what_was_evaluated(tmp_path):
    path = tmp_path / "best.keras"
    saving = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
    history = fit(tiny.model(norm=keras.layers.BatchNormalization()), [saving])
    _, validation = data()
    loaded = keras.models.load_model(path)
    expected = min(history.history["val_loss"])
    assert loop.evaluate(loaded, validation)["loss"] == pytest.approx(expected, abs=1e-6)


def test_what_two_replicas_save_evaluates_alike_on_one_device(tmp_path):
    strategy = tiny.strategy(2)
    with strategy.scope():
        model = tiny.model(norm=keras.layers.BatchNormalization())
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "last.keras")
    history = fit(model, [saving], strategy=strategy)
    _, validation = data()
    logs = loop.evaluate(keras.models.load_model(tmp_path / "last.keras"), validation)
    assert logs["loss"] == pytest.approx(history.history["val_loss"][-1], abs=1e-6)
    assert logs["accuracy"] == history.history["val_accuracy"][-1]


def test_callbacks_that_save_within_an_epoch_find_averaged_statistics(one_step_a_call):
    strategy = tiny.strategy(2)
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        model = tiny.model(norm=norm)
    differences = []

    class Saving(keras.callbacks.Callback):
        save_freq = 1

        def on_train_batch_end(self, batch, logs=None):
            locals_ = strategy.experimental_local_results(norm.moving_mean.value)
            first, second = (value.numpy() for value in locals_)
            differences.append(np.abs(first - second).max())

    fit(model, [Saving()], strategy=strategy)
    assert differences == [0.0] * 8


def test_tensorboard_writes_events(tmp_path):
    fit(tiny.model(), [keras.callbacks.TensorBoard(tmp_path)])
    assert list((tmp_path / "train").glob("events.*"))
    assert list((tmp_path / "validation").glob("events.*"))


def test_csv_logger_writes_a_row_an_epoch(tmp_path):
    history = fit(tiny.model(), [keras.callbacks.CSVLogger(tmp_path / "log.csv")])
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert float(rows[1]["val_loss"]) == history.history["val_loss"][1]


def test_reduce_lr_on_plateau_lowers_the_rate():
    plateau = keras.callbacks.ReduceLROnPlateau(
        "val_loss", min_delta=100, factor=0.1, patience=1
    )
    model = tiny.model(optimizer=keras.optimizers.SGD(0.05))
    fit(model, [plateau])
    assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(0.005)


def test_lambda_callback_can_stop_training(one_step_a_call):
    model = tiny.model()

    def stop(batch, logs):
        model.stop_training = batch == 2

    history = fit(model, [keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
    assert history.epoch == [0]
    assert int(model.optimizer.iterations.numpy()) == 3


def test_a_metric_that_will_not_exist_is_refused_before_the_first_step():
    model = tiny.model()
    with pytest.raises(UserError) as error:
        fit(model, [keras.callbacks.EarlyStopping("val_acc")])
    assert str(error.value) == (
        "EarlyStopping monitors 'val_acc', which this run will not have, expected one of "
        "loss, accuracy, val_loss, val_accuracy."
    )
    assert int(model.optimizer.iterations.numpy()) == 0


def test_monitoring_validation_without_validation_data_says_so():
    training, _ = data()
    with pytest.raises(UserError, match="There is no validation data"):
        loop.fit(
            tiny.model(),
            training,
            LENGTH,
            callbacks=[keras.callbacks.EarlyStopping("val_loss")],
        )


def test_setting_the_rate_of_a_schedule_is_refused():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    model = tiny.model(optimizer=keras.optimizers.SGD(schedule))
    with pytest.raises(UserError, match="the optimizer has a schedule"):
        fit(model, [keras.callbacks.ReduceLROnPlateau("val_loss")])


@pytest.mark.parametrize(
    ("replicas", "accumulation", "offer"), [(3, 1, 9), (1, 3, 9), (2, 8, 16)]
)
def test_a_batch_that_cannot_be_shared_out_is_refused(replicas, accumulation, offer):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model()
    with pytest.raises(UserError, match=f"try {offer}"):
        fit(model, strategy=strategy, options=step.Options(accumulation=accumulation))


class Kill(keras.callbacks.Callback):
    """Stops a run as Ctrl-C would, at a step."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def next_boundary(self, step):
        return self.at if step < self.at else None

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.at:
            raise KeyboardInterrupt


def everything(model):
    found = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [v.numpy() for v in found]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_a_resumed_run_equals_one_that_was_never_stopped(replicas, policy, tmp_path):
    # 30 examples in batches of 8: epochs end in mid-step; 5 is in mid-epoch.
    strategy = tiny.strategy(replicas)
    training = tiny.training(count=30)
    length = plan.build(30, duration="3ep", global_batch_size=8)
    assert length.total_steps == 12

    def run(folder, *callbacks):
        with strategy.scope():
            model = tiny.model(
                norm=keras.layers.BatchNormalization(), dropout=0.3, policy=policy
            )
        saving = Checkpointer(folder, length, every="5st")
        loop.fit(
            model,
            training,
            length,
            strategy=strategy,
            callbacks=callbacks,
            checkpointer=saving,
        )
        return model

    whole = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", Kill(7))
    resumed = run(tmp_path / "parts")
    for got, want in zip(everything(resumed), everything(whole), strict=True):
        np.testing.assert_array_equal(got, want)


class Ask(Kill):
    """Asks for the end as SIGTERM would, at a step."""

    def __init__(self, at, request):
        super().__init__(at)
        self.request = request

    def on_train_batch_end(self, batch, logs=None):
        self.request.made |= int(self.model.optimizer.iterations.numpy()) == self.at


@pytest.mark.parametrize("at", [6, 8, 12], ids=["mid-epoch", "an epoch's end", "the end"])
def test_a_run_that_is_asked_to_end_saves_and_goes_on_as_if_never_asked(at, tmp_path):
    length = plan.build(32, duration="3ep", global_batch_size=8)

    def run(folder, *callbacks, **arguments):
        model = tiny.model(norm=keras.layers.BatchNormalization(), dropout=0.3)
        saving = Checkpointer(folder, length, every="1ep")
        history = fit(model, callbacks, length, checkpointer=saving, **arguments)
        return model, history.history

    whole, expected = run(tmp_path / "whole")
    request = termination.Request()
    with pytest.raises(termination.Terminated):
        run(tmp_path / "parts", Ask(at, request), request=request)
    saving = Checkpointer(tmp_path / "parts", length, every="1ep")
    assert saving.read_state(saving.newest())["step"] == at
    resumed, history = run(tmp_path / "parts")
    assert history == expected
    for got, want in zip(everything(resumed), everything(whole), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_run_without_checkpoints_ends_when_it_is_asked_to():
    request = termination.Request()
    with pytest.raises(termination.Terminated):
        fit(tiny.model(), [Ask(3, request)], request=request)


def test_a_resumed_run_remembers_callbacks_and_history(tmp_path):
    def run(folder, kill_at=None):
        stopping = never_better(patience=3, restore_best_weights=True)
        model = tiny.model()
        length = plan.build(32, duration="10ep", global_batch_size=8)
        callbacks = [stopping] + ([Kill(kill_at)] if kill_at else [])
        saving = Checkpointer(folder, length, every="1ep")
        history = fit(model, callbacks, length, checkpointer=saving)
        return model, stopping, history

    whole, stopping, history = run(tmp_path / "whole")
    assert stopping.stopped_epoch == 3
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", kill_at=10)
    resumed, resumed_stopping, resumed_history = run(tmp_path / "parts")
    assert resumed_stopping.stopped_epoch == 3
    assert resumed_history.history == history.history
    for got, want in zip(tiny.weights(resumed), tiny.weights(whole), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    length = plan.build(32, duration="10ep", global_batch_size=8)

    def run():
        stopping = never_better(patience=1)
        model = tiny.model()
        fit(model, [stopping], length, checkpointer=Checkpointer(tmp_path, length))
        return int(model.optimizer.iterations.numpy())

    assert run() == 8  # two epochs of four steps
    assert run() == 8


def test_epochs_that_end_in_mid_step_take_every_example_once():
    length = plan.build(101, duration="3ep", global_batch_size=10)
    assert length.total_steps == 31  # 303 examples, the last batch is not full of them
    assert [length.epoch_end(epoch) for epoch in range(3)] == [11, 21, 31]
    assert [length.epoch_at(step) for step in (0, 10, 11, 20, 21, 30)] == [0, 0, 1, 1, 2, 2]
    assert length.epochs == 3


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UserError, match="global_batch_size=64 for 48 training examples"):
        plan.build(48, duration="1ep", global_batch_size=64)


@pytest.mark.parametrize("duration", ["0ep", "0st"])
def test_a_run_of_no_length_is_refused(duration):
    with pytest.raises(UserError, match="more than 0"):
        plan.check(duration=duration, global_batch_size=8, log_every="1st")


def test_jit_reaches_the_compiler():
    model = tiny.model()
    training = step.TrainingStep(model, tiny.strategy(1), step.Options(jit=True))
    iterator = tiny.iterator(tiny.training(), tiny.strategy(1))
    training(iterator, 1)
    x, y = next(iter(tiny.training().dataset()))
    assert "HloModule" in training._gradients.experimental_get_compiler_ir((x, y))()
