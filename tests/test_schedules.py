from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel import schedules
from tfaccel.errors import UserError

# A run of 10 epochs of 10 steps.
RUN = (0.4, 100, Fraction(10))
# float32 carries 7 digits, and a rate is made in about three roundings.
PRECISE = {"rtol": 5e-7, "atol": 1e-8}


def rates(steps, run=RUN, **kwargs):
    schedule = schedules.build(*run, **kwargs)
    return [float(schedule(step)) for step in steps]


def refused(match, **kwargs):
    """Asserts a UserError of one line."""
    with pytest.raises(UserError, match=match) as error:
        schedules.build(*RUN, **kwargs)
    assert "\n" not in str(error.value)


# Each case: the arguments, and the rate at chosen steps.
CASES = {
    "cosine": (
        {"name": "cosine"},
        {0: 0.4, 25: 0.2 * (1 + 0.5**0.5), 50: 0.2, 75: 0.2 * (1 - 0.5**0.5), 100: 0},
    ),
    "cosine with warm-up": (
        {"name": "cosine", "warmup": "10st"},
        {0: 0.04, 4: 0.2, 9: 0.4, 10: 0.4, 40: 0.3, 55: 0.2, 70: 0.1, 100: 0},
    ),
    "cosine to a tenth": (
        {"name": "cosine", "warmup": "1ep", "final_share": 0.1},
        {0: 0.04, 10: 0.4, 55: 0.22, 100: 0.04, 1000: 0.04},
    ),
    "linear": (
        {"name": "linear"},
        {0: 0.4, 25: 0.3, 50: 0.2, 99: 0.004, 100: 0, 1000: 0},
    ),
    "linear with warm-up to a quarter": (
        {"name": "linear", "warmup": "20%", "final_share": 0.25},
        {0: 0.02, 19: 0.4, 20: 0.4, 60: 0.25, 100: 0.1},
    ),
    "one_cycle warms up for 30 %": (
        {"name": "one_cycle"},
        {0: 0.4 / 30, 14: 0.2, 29: 0.4, 30: 0.4, 65: 0.2, 100: 0},
    ),
    "one_cycle with a warm-up of its own": (
        {"name": "one_cycle", "warmup": "2ep", "final_share": 0.5},
        {0: 0.02, 19: 0.4, 20: 0.4, 60: 0.3, 100: 0.2},
    ),
    "constant with warm-up": (
        {"name": "constant", "warmup": "1ep"},
        {0: 0.04, 4: 0.2, 9: 0.4, 10: 0.4, 100: 0.4, 1000: 0.4},
    ),
    "steps": (
        {"name": "steps", "boundaries": "50%,75%"},
        {0: 0.4, 49: 0.4, 50: 0.04, 74: 0.04, 75: 0.004, 100: 0.004},
    ),
    "steps in all units, after a warm-up": (
        {"name": "steps", "boundaries": "3ep, 50st,75%", "factor": 0.5, "warmup": "4st"},
        {0: 0.1, 3: 0.4, 29: 0.4, 30: 0.2, 49: 0.2, 50: 0.1, 74: 0.1, 75: 0.05},
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), CASES.values(), ids=CASES)
def test_rate_at_chosen_steps(arguments, expected):
    np.testing.assert_allclose(rates(expected, **arguments), [*expected.values()], **PRECISE)


def test_cosine_is_the_default():
    assert rates(range(101)) == rates(range(101), name="cosine")


@pytest.mark.parametrize("arguments", [a for a, _ in CASES.values()], ids=CASES)
def test_rate_never_exceeds_the_highest(arguments):
    # It is 0.4 up to float32's rounding.
    assert max(rates(range(101), **arguments)) == np.float32(0.4)


def test_warmup_of_an_epoch_that_ends_within_a_step_covers_it():
    # 1 epoch = 10.1 steps: the 11th step holds the rest of it.
    run = (0.4, 100, Fraction(101, 10))
    got = rates([0, 10, 11], run, name="constant", warmup="1ep")
    np.testing.assert_allclose(got, [0.4 / 11, 0.4, 0.4], **PRECISE)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"name": "one_cycle"}, ["schedule.warmup: 30 steps (auto: 30% of the run)"]),
        ({"name": "cosine"}, ["schedule.warmup: 0 steps (auto for cosine)"]),
        ({"name": "cosine", "warmup": "5st"}, []),
    ],
)
def test_auto_says_what_it_chose(arguments, lines, log):
    schedules.build(*RUN, **arguments)
    assert log.messages == lines


def test_constant_without_warmup_is_a_number():
    # ReduceLROnPlateau cannot change a schedule.
    assert schedules.build(*RUN, name="constant") == 0.4
    assert type(schedules.build(*RUN, name="constant")) is float


@pytest.mark.parametrize("arguments", [a for a, _ in CASES.values()], ids=CASES)
def test_schedule_survives_saving(arguments):
    schedule = schedules.build(*RUN, **arguments)
    saved = keras.saving.serialize_keras_object(schedule)
    loaded = keras.saving.deserialize_keras_object(saved)
    assert loaded.get_config() == schedule.get_config()
    assert [float(loaded(s)) for s in range(101)] == [float(schedule(s)) for s in range(101)]


def test_schedule_survives_within_an_optimizer():
    optimizer = keras.optimizers.SGD(schedules.build(*RUN, warmup="1ep"))
    loaded = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    loaded.build([keras.Variable([0.0])])
    loaded.iterations.assign(4)
    assert float(loaded.learning_rate) == np.float32(0.2)


@pytest.mark.parametrize("arguments", [a for a, _ in CASES.values()], ids=CASES)
def test_rate_is_the_same_within_xla(arguments):
    schedule = schedules.build(*RUN, **arguments)
    compiled = tf.function(schedule, jit_compile=True)
    got = [compiled(tf.constant(step, tf.int64)) for step in (0, 3, 50, 100)]
    assert {rate.dtype for rate in got} == {tf.float32}
    # XLA has a cosine and a power of its own, right to a unit in the last place.
    np.testing.assert_allclose(got, rates((0, 3, 50, 100), **arguments), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("warmup", ["100st", "200st", "10ep", "100%"])
@pytest.mark.parametrize("name", ["cosine", "linear", "one_cycle"])
def test_warmup_as_long_as_the_run_is_refused(name, warmup):
    refused(
        rf"warmup={warmup} = (100|200) steps, expected less than the run's 100 steps",
        name=name,
        warmup=warmup,
    )


@pytest.mark.parametrize(
    ("name", "boundaries"),
    [("cosine", "50%"), ("constant", "3ep,5ep"), ("one_cycle", "50st"), ("steps", "")],
)
def test_boundaries_go_with_steps_and_only_with_it(name, boundaries):
    refused(
        rf"schedule\.name={name} with schedule\.boundaries='{boundaries}'.*only with it",
        name=name,
        boundaries=boundaries,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "cosin"},
            r"schedule\.name='cosin', expected one of constant, .*Did you mean cosine\?",
        ),
        ({"warmup": "5"}, r"schedule\.warmup='5', .*Write schedule\.warmup=5ep or .*=5st"),
        ({"warmup": "5 epochs"}, r"schedule\.warmup='5 epochs', expected .*a duration"),
        ({"warmup": "0.5st"}, r"schedule\.warmup='0\.5st', expected .*a duration"),
        (
            {"name": "steps", "boundaries": "3ep,half"},
            r"schedule\.boundaries='half', expected a duration",
        ),
    ],
    ids=["name", "no unit", "unknown unit", "half a step", "boundary"],
)
def test_argument_that_means_nothing_is_refused(arguments, message):
    refused(message, **arguments)
