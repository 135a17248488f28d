"""NotLearning, in our loop and in Keras's own fit."""

import keras
import numpy as np
import pytest
import tiny

from tfaccel import callbacks, loop, plan


def constant_model(classes=4, rate=0.0):
    """A model that gives every class the same probability, and stays so at rate 0."""
    inputs = keras.Input((8, 8, 3))
    outputs = keras.layers.Dense(classes, kernel_initializer="zeros")(
        keras.layers.Flatten()(inputs)
    )
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, auto_scale_loss=False)
    return model


def ours(model, callback, steps):
    length = plan.build(32, duration=f"{steps}st", global_batch_size=8)
    loop.fit(model, tiny.training(count=32), length, callbacks=[callback])


def stock(model, callback, steps):
    dataset = tiny.training(count=32).dataset()
    model.fit(dataset, epochs=steps // 4, steps_per_epoch=4, callbacks=[callback], verbose=0)


def warnings(log):
    return [message for message in log.messages if message.startswith("not learning")]


@pytest.mark.parametrize("fit", [ours, stock])
def test_a_model_that_guesses_is_told_once(fit, log):
    fit(constant_model(), callbacks.NotLearning(steps=8), 20)
    (message,) = warnings(log)
    assert "at ln(4) = 1.386, that of guessing, for 8 steps" in message
    for advice in ("learning rate", "data.normalize", "batch normalisation", "tfaccel.data"):
        assert advice in message


@pytest.mark.parametrize("fit", [ours, stock])
def test_nothing_is_said_before_the_steps_are_over(fit, log):
    fit(constant_model(), callbacks.NotLearning(steps=21), 20)
    assert warnings(log) == []


def run(losses, **kwargs):
    """Hands the callback losses of single steps as Keras would: as means."""
    callback = callbacks.NotLearning(classes=10, **kwargs)
    callback.set_model(constant_model(10))
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    for step in range(len(losses)):
        callback.on_train_batch_end(step, {"loss": float(np.mean(losses[: step + 1]))})


LN_10 = np.log(10)


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([LN_10] * 100, True),
        ([LN_10 * 1.009, LN_10 * 0.991] * 50, True),
        (np.linspace(2.6, 2.0, 100), False),  # passes ln(10) on its way
        ([LN_10] * 95 + [2.2] * 5 + [LN_10] * 95, False),
        ([1.5] * 50 + [LN_10] * 100, True),
        ([2.4] * 200, False),
    ],
    ids=["flat", "noisy", "falling", "interrupted", "collapsed", "above"],
)
def test_only_a_loss_that_stays_at_guessing_is_told(losses, told, log):
    run(losses, steps=100)
    assert bool(warnings(log)) == told
