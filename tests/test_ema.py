import keras
import numpy as np
import pytest
import tiny

from tfaccel import ema, loop, plan, step
from tfaccel.checkpoint import Checkpointer
from tfaccel.errors import UserError

LENGTH = plan.build(48, duration="2ep", global_batch_size=8, log_every="0st")


def trained(replicas=1, decay=0.8, apply=True, length=LENGTH, **options):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model()
        average = ema.build(model, decay=decay, apply=apply)
    history = loop.fit(
        model, tiny.training(), length, strategy=strategy, ema=average, **options
    )
    return model, average, history


def values(average):
    return [v.numpy() for v in average.variables[1:]]


def test_the_average_follows_its_formula():
    model = tiny.model()
    average = ema.build(model, decay=0.5)
    expected = [v.numpy().astype(np.float64) for v in model.trainable_variables]
    training = step.TrainingStep(model, None, after_update=average.update)
    iterator = tiny.iterator(tiny.training(), tiny.strategy(1))
    for update in range(1, 7):
        training(iterator, 1)
        decay = min(0.5, (1 + update) / (10 + update))
        for old, variable in zip(expected, model.trainable_variables, strict=True):
            old += (1 - decay) * (variable.numpy() - old)
    for got, want in zip(values(average), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_keep_the_same_average(replicas):
    _, single, _ = trained()
    _, several, _ = trained(replicas)
    for got, want in zip(values(several), values(single), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_a_skipped_update_leaves_the_average_alone():
    model = tiny.model(policy="mixed_float16")
    average = ema.build(model, decay=0.5)
    training = step.TrainingStep(model, None, after_update=average.update)
    training(tiny.iterator(tiny.training(), tiny.strategy(1)), 1)
    before = values(average)
    model.optimizer.dynamic_scale.assign(np.inf)
    training(tiny.iterator(tiny.training(), tiny.strategy(1), 1), 1)
    for got, want in zip(values(average), before, strict=True):
        np.testing.assert_array_equal(got, want)


def test_validation_sees_the_averaged_weights_only_if_they_are_applied():
    validation = tiny.evaluation(seed=1)
    for apply in (True, False):
        model, average, history = trained(apply=apply, validation=validation)
        reported = history.history["val_loss"][-1]
        last = loop.evaluate(model, validation)["loss"]
        with average.applied():
            averaged = loop.evaluate(model, validation)["loss"]
        assert averaged != pytest.approx(last, abs=1e-6)
        assert reported == pytest.approx(averaged if apply else last, abs=1e-6)


def test_applied_puts_the_weights_back():
    model, average, _ = trained(2)
    weights, averages = tiny.weights(model), values(average)
    with average.applied():
        for got, want in zip(model.trainable_variables, averages, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    for got, want in zip(tiny.weights(model), weights, strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(values(average), averages, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_run_that_was_stopped_keeps_its_average(tmp_path):
    _, whole, _ = trained()
    half = plan.Plan(5, LENGTH.steps_per_epoch)
    trained(length=half, checkpointer=Checkpointer(tmp_path, half, every="1st"))
    checkpointer = Checkpointer(tmp_path, LENGTH, every="1st")
    _, resumed, _ = trained(checkpointer=checkpointer)
    for got, want in zip(values(resumed), values(whole), strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_exported_model_has_the_averaged_weights(tmp_path):
    model, average, _ = trained()
    with average.applied():
        model.save(tmp_path / "averaged.keras")
    loaded = keras.models.load_model(tmp_path / "averaged.keras")
    for got, want in zip(loaded.trainable_variables, values(average), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


def test_no_average_if_decay_is_zero_and_none_that_never_moves():
    model = tiny.model()
    assert ema.build(model) is None
    with pytest.raises(UserError, match=r"ema\.decay=1\.0"):
        ema.build(model, decay=1.0)
