"""When masks change, and to what: TFMOT's schedules over a run."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from tfaccel.errors import UserError
from tfaccel.plan import Plan
from tfaccel.pruning import tfmot, timetable

PLAN = Plan(total_steps=100, steps_per_epoch=Fraction(25, 2))


def schedule(name="polynomial", begin="20%", end="70%", frequency="10st", initial=0.0):
    return timetable.Schedule(name, initial, 3.0, begin, end, frequency)


def test_durations_of_all_units_are_resolved():
    table = schedule(begin="1ep", end="70%", frequency="19st").over(PLAN, [0.8])
    assert table.steps == [13, 32, 51, 70]


@pytest.mark.parametrize("name", ["polynomial", "constant"])
@pytest.mark.parametrize("initial", [0.0, 0.3])
def test_sparsities_are_those_of_tfmot(name, initial):
    table = schedule(name, initial=initial).over(PLAN, [0.8, 0.5])
    keras = tfmot.load().sparsity.keras
    for goal in (0.8, 0.5):
        theirs = {
            "polynomial": keras.PolynomialDecay(initial, goal, 20, 70, 3, 10),
            "constant": keras.ConstantSparsity(goal, 20, 70, 10),
        }[name]
        for step, value in zip(table.steps, table.sparsities[goal], strict=True):
            due, expected = theirs(tf.constant(step))
            assert bool(due)
            assert value == expected.numpy()


def test_masks_change_at_the_steps_of_tfmot_and_at_the_end():
    # TFMOT alone: 20, 34, 48, 62, where only 0.78 of 0.8 is reached.
    table = schedule(frequency="14st").over(PLAN, [0.8])
    assert table.steps == [20, 34, 48, 62, 70]
    assert table.sparsities[0.8][-1] == np.float32(0.8)
    assert table.target_step == 70


def test_constant_is_at_its_target_from_the_beginning():
    assert schedule("constant").over(PLAN, [0.8]).target_step == 20


def test_next_and_past_updates():
    table = schedule(frequency="25st").over(PLAN, [0.8])
    assert table.steps == [20, 45, 70]
    assert [table.next_after(step) for step in (0, 19, 20, 45, 70, 99)] == [
        20, 20, 45, 70, None, None,
    ]  # fmt: skip
    assert [table.updates_by(step) for step in (0, 19, 20, 44, 45, 100)] == [0, 0, 1, 1, 2, 3]


def test_a_frequency_below_a_step_is_every_step():
    table = schedule(begin="10st", end="14st", frequency="0.1%").over(PLAN, [0.8])
    assert table.steps == [10, 11, 12, 13, 14]


def test_a_schedule_longer_than_the_run_says_how_far_it_would_get():
    with pytest.raises(UserError) as error:
        schedule(begin="0st", end="200st", frequency="50st").over(PLAN, [0.8])
    # 0.8 - 0.8 * (1 - 100 / 200) ** 3
    assert str(error.value) == (
        "received pruning.end=200st = step 200, but the run has 100 steps: at step 100 "
        "sparsity would be 0.70, asked 0.80. Use 100st or less."
    )


@pytest.mark.parametrize(
    ("begin", "end", "frequency", "part"),
    [
        ("70%", "20%", "1st", "expected begin before end"),
        ("50%", "50%", "1st", "expected begin before end"),
        ("20%", "70%", "0st", "received pruning.frequency=0st, expected above 0"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(begin, end, frequency, part):
    with pytest.raises(UserError, match=part):
        schedule(begin=begin, end=end, frequency=frequency).over(PLAN, [0.8])
