"""NonFiniteGuard, alone and from a config."""

import keras
import pytest
import tiny
from both import both, ours

from tfaccel import callbacks, loop, plan
from tfaccel.callbacks import guard
from tfaccel.checkpoint import Checkpointer
from tfaccel.errors import UserError


def exploding():
    """A model whose weights overflow after the first update."""
    return tiny.model(optimizer=keras.optimizers.SGD(1e30))


@both
def test_a_loss_that_is_no_number_ends_the_run_with_the_step(fit, monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 0)
    model = exploding()
    with pytest.raises(UserError) as error:
        fit(model, [callbacks.NonFiniteGuard()])
    message = str(error.value)
    assert message.startswith("the loss became ")
    assert " in step 2 (learning rate 1e+30), expected a finite number: try " in message
    assert "\n" not in message
    assert int(model.optimizer.iterations.numpy()) == 2


@both
def test_a_warning_is_given_once(fit, log):
    history = fit(exploding(), [callbacks.NonFiniteGuard("warn")])
    assert history.epoch == [0, 1]
    assert len([m for m in log.messages if m.startswith("the loss became ")]) == 1


@both
def test_a_healthy_run_is_left_alone(fit):
    assert fit(tiny.model(), [callbacks.NonFiniteGuard()]).epoch == [0, 1]


def test_steps_of_one_call_are_named_together_and_nothing_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 1e9)
    length = plan.build(32, duration="2ep", global_batch_size=8)
    saving = Checkpointer(tmp_path, length, every="1st")
    saving.next_boundary = lambda step: None
    with pytest.raises(UserError, match="in steps 2 to 4"):
        ours(exploding(), [callbacks.NonFiniteGuard()], checkpointer=saving)
    assert [path.name for path in saving.all()] == ["step_000000001"]


@pytest.mark.parametrize(("action", "count"), [("stop", 1), ("warn", 1), ("ignore", 0)])
def test_the_config_says_what_to_do(action, count):
    built = guard.build(4, nonfinite_loss=action)
    assert [(c.action, c.step) for c in built] == [(action, 4)] * count


def test_an_unknown_action_is_refused():
    with pytest.raises(UserError, match=r"guard\.nonfinite_loss='stopp'.*Did you mean stop"):
        guard.build(nonfinite_loss="stopp")
