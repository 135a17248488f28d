import inspect
from fractions import Fraction

import keras
import numpy as np
import pytest

from tfaccel import optimizers, schedules
from tfaccel.errors import UserError

NAMES = {
    "adadelta": "Adadelta",
    "adafactor": "Adafactor",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamax": "Adamax",
    "adamw": "AdamW",
    "ftrl": "Ftrl",
    "lamb": "Lamb",
    "lion": "Lion",
    "muon": "Muon",
    "nadam": "Nadam",
    "rmsprop": "RMSprop",
    "schedulefreeadamw": "ScheduleFreeAdamW",
    "sgd": "SGD",
}
# Without gradients Ftrl sets weights to 0 by itself; Keras's schedule-free AdamW makes
# its weights anew from averages that know no decay; Keras's Muon decays only matrices
# by `weight_decay`.
DECAYING = sorted(set(NAMES) - {"ftrl", "muon", "schedulefreeadamw"})


def ones(conv=True):
    """A model of all kinds of variables, every one of them 1."""
    model = keras.Sequential([keras.Input((4, 4, 2))])
    if conv:
        model.add(keras.layers.Conv2D(3, 2, name="conv"))
        model.add(keras.layers.BatchNormalization(name="norm"))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(5, name="dense"))
    for variable in model.variables:
        variable.assign(np.ones(variable.shape))
    return model


def values_after_no_gradient(model, optimizer):
    """The values of each variable after a step in which all gradients are 0."""
    variables = model.trainable_variables
    optimizer.apply([np.zeros(v.shape, np.float32) for v in variables], variables)
    return {"/".join(v.path.split("/")[-2:]): np.unique(v.numpy()).tolist() for v in variables}


def refused(match, function, *args, **kwargs):
    """Asserts a UserError of one line."""
    with pytest.raises(UserError, match=match) as error:
        function(*args, **kwargs)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def model():
    return ones(conv=False)


@pytest.mark.parametrize(("name", "class_name"), NAMES.items())
def test_keras_optimizer_by_lower_case_name(model, name, class_name):
    optimizer = optimizers.build(model, 0.25, name=name)
    assert type(optimizer) is getattr(keras.optimizers, class_name)
    assert float(optimizer.learning_rate) == 0.25


def test_no_optimizer_of_this_keras_is_forgotten():
    found = {
        name
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value)
        and issubclass(value, keras.optimizers.Optimizer)
        and "learning_rate" in inspect.signature(value).parameters
    }
    assert found == set(NAMES.values())


def test_name_as_keras_spells_it(model):
    assert type(optimizers.build(model, 0.1, name="AdamW")) is keras.optimizers.AdamW


def test_sgd_is_the_default(model):
    assert type(optimizers.build(model, 0.1)) is keras.optimizers.SGD


def test_schedule_sets_the_rate(model):
    schedule = schedules.build(0.5, 100, Fraction(10), name="linear")
    optimizer = optimizers.build(model, schedule)
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(50)
    # Exact: half of 0.5.
    assert float(optimizer.learning_rate) == 0.25


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("adm", "adam"), ("sdg", "sgd"), ("rmsprob", "rmsprop"), ("lossscaleoptimizer", "")],
)
def test_unknown_name_is_refused_with_the_nearest(model, name, nearest):
    hint = rf"Did you mean .*\b{nearest}\b" if nearest else "Known: adadelta"
    refused(
        rf"optimizer\.name={name}, which Keras does not have.*{hint}",
        optimizers.build,
        model,
        0.1,
        name=name,
    )


# Arguments.


def test_arguments_reach_the_optimizer(model):
    arguments = {"momentum": 0.9, "nesterov": True, "global_clipnorm": 1.0}
    optimizer = optimizers.build(model, 0.1, arguments=arguments)
    assert (optimizer.momentum, optimizer.nesterov) == (0.9, True)
    assert optimizer.global_clipnorm == 1.0


def test_arguments_are_not_changed(model):
    arguments = {"momentum": 0.9}
    optimizers.build(model, 0.1, weight_decay=0.1, arguments=arguments)
    assert arguments == {"momentum": 0.9}


@pytest.mark.parametrize(
    ("name", "argument", "nearest"),
    [
        ("sgd", "momentun", "momentum"),
        ("adam", "beta1", "beta_1"),
        ("lion", "Beta_2", "beta_2"),
    ],
)
def test_unknown_argument_is_refused_with_the_nearest(model, name, argument, nearest):
    refused(
        rf"optimizer\.arguments\.{argument}, which {name} does not take\. "
        rf"Did you mean (\w+ or )*{nearest}\b",
        optimizers.build,
        model,
        0.1,
        name=name,
        arguments={argument: 0.9},
    )


def test_argument_of_another_optimizer_is_refused(model):
    refused(
        r"optimizer\.arguments\.momentum, which adam does not take",
        optimizers.build,
        model,
        0.1,
        name="adam",
        arguments={"momentum": 0.9},
    )


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("learning_rate", r"optimizer\.learning_rate"),
        ("weight_decay", r"optimizer\.weight_decay"),
        ("gradient_accumulation_steps", "accumulation"),
        ("loss_scale_factor", "precision"),
        ("use_ema", r"ema\.decay"),
    ],
)
def test_argument_that_has_a_field_of_its_own_is_refused(model, argument, field):
    refused(
        rf"optimizer\.arguments\.{argument}, which is not passed on.*{field}",
        optimizers.build,
        model,
        0.1,
        arguments={argument: 1},
    )


def test_value_that_keras_refuses_is_refused(model):
    refused(
        "optimizer sgd cannot be made: .*momentum",
        optimizers.build,
        model,
        0.1,
        arguments={"momentum": 2.0},
    )


# Weight decay. Rates and decays are powers of two, so that all results are exact.


@pytest.mark.parametrize("name", DECAYING)
def test_decay_takes_rate_x_decay_off_kernels_and_nothing_off_the_rest(name):
    model = ones()
    optimizer = optimizers.build(model, 0.5, name=name, weight_decay=0.25)
    assert values_after_no_gradient(model, optimizer) == {
        "conv/kernel": [0.875],
        "conv/bias": [1],
        "norm/gamma": [1],
        "norm/beta": [1],
        "dense/kernel": [0.875],
        "dense/bias": [1],
    }


def test_muon_decays_matrices_alike():
    model = ones(conv=False)
    optimizer = optimizers.build(model, 0.5, name="muon", weight_decay=0.25)
    decayed = values_after_no_gradient(model, optimizer)
    assert decayed == {"dense/kernel": [0.875], "dense/bias": [1]}


def test_decay_follows_the_schedule():
    model = ones(conv=False)
    schedule = schedules.build(0.5, 4, Fraction(1), name="constant", warmup="2st")
    optimizer = optimizers.build(model, schedule, weight_decay=0.25)
    # The first step of two to a rate of 0.5.
    decayed = values_after_no_gradient(model, optimizer)
    assert decayed == {"dense/kernel": [1 - 0.25 * 0.25], "dense/bias": [1]}


def test_keras_own_default_decay_spares_the_rest_too():
    model = ones(conv=False)
    optimizer = optimizers.build(model, 0.5, name="adamw")
    assert values_after_no_gradient(model, optimizer)["dense/bias"] == [1]


def test_nothing_decays_unless_asked():
    model = ones()
    after = values_after_no_gradient(model, optimizers.build(model, 0.5))
    assert {float(v) for values in after.values() for v in values} == {1}


# The learning rate's unit.


@pytest.mark.parametrize(
    ("batch", "unit", "expected"),
    [
        (512, "absolute", 0.125),
        (64, "absolute", 0.125),
        (256, "per_256", 0.125),
        (512, "per_256", 0.25),
        (64, "per_256", 0.03125),
        (96, "per_256", 0.046875),
    ],
)
def test_rate_of_a_batch(batch, unit, expected):
    rate = optimizers.scale_rate(batch, learning_rate=0.125, learning_rate_unit=unit)
    assert rate == expected


def test_rate_is_absolute_by_default():
    assert optimizers.scale_rate(1024) == 0.1
