"""Any Keras optimizer by name, with weight decay where it belongs."""

from __future__ import annotations

import inspect
from typing import Literal

from tfaccel import fields
from tfaccel.errors import UserError, did_you_mean, one_line
from tfaccel.fields import NonNegative, Positive
from tfaccel.lazy import keras
from tfaccel.log import logger

# Keras recomputes its weights from averages that know no decay.
_WITHOUT_DECAY = ("ScheduleFreeAdamW",)
RateUnit = Literal["absolute", "per_256"]


def scale_rate(
    global_batch_size: int,
    *,
    learning_rate: Positive = 0.1,
    learning_rate_unit: RateUnit = "absolute",
) -> float:
    """Returns the learning rate that this batch size gets, and logs it.

    Args:
        global_batch_size: Examples in a step.
        learning_rate: The rate, or the rate for a batch of 256.
        learning_rate_unit: "absolute", or "per_256" to scale linearly with the
            batch (Goyal et al., "Accurate, Large Minibatch SGD", 2017).
    """
    fields.check(RateUnit, learning_rate_unit, "optimizer.learning_rate_unit")
    if learning_rate_unit == "absolute":
        logger.info("learning rate: %g (absolute)", learning_rate)
        return learning_rate
    rate = learning_rate * global_batch_size / 256
    logger.info(
        "learning rate: %g (%g per 256 x batch %d)", rate, learning_rate, global_batch_size
    )
    return rate


def build(
    model: keras.Model,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
    *,
    name: str = "sgd",
    weight_decay: NonNegative = 0.0,
    arguments: dict | None = None,
) -> keras.optimizers.Optimizer:
    """Returns a Keras optimizer that decays kernels only.

    Biases and the scales and shifts of normalisation (all variables of fewer
    than two dimensions) are left out of the decay.

    Args:
        model: The built model whose variables it will update.
        learning_rate: A number or a schedule.
        name: Any Keras optimizer, such as "sgd", "adamw" or "lion".
        weight_decay: Decoupled decay: each step takes away learning rate x
            weight_decay x the weight.
        arguments: Further arguments of the optimizer's class, such as
            {"momentum": 0.9, "nesterov": True} or {"global_clipnorm": 1.0}.

    Raises:
        UserError: If the optimizer is unknown or refuses an argument.

    Example:
        optimizer = build(model, 1e-3, name="adamw", weight_decay=0.05)
    """
    arguments = dict(arguments or {})
    optimizer_class = _find(name)
    _check_arguments(name, optimizer_class, arguments)
    arguments |= _decay_arguments(name, optimizer_class, weight_decay)
    try:
        optimizer = optimizer_class(learning_rate=learning_rate, **arguments)
    except (ValueError, TypeError) as error:
        raise UserError(f"optimizer {name} cannot be made: {one_line(error)}") from error
    if optimizer.weight_decay:
        small = [v for v in model.trainable_variables if len(v.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=small)
    return optimizer


def _find(name: str) -> type:
    classes = {
        found.__name__: found
        for found in vars(keras.optimizers).values()
        if inspect.isclass(found)
        and issubclass(found, keras.optimizers.Optimizer)
        and found is not keras.optimizers.Optimizer
        and "learning_rate" in inspect.signature(found).parameters
    }
    by_lower_name = {known.lower(): found for known, found in classes.items()}
    if name.lower() in by_lower_name:
        return by_lower_name[name.lower()]
    raise UserError(
        f"received optimizer.name={name}, which Keras does not have. "
        f"{did_you_mean(name, by_lower_name)}"
    )


def _decay_arguments(name: str, optimizer_class: type, weight_decay: float) -> dict:
    """Says the decay even where it is 0: some classes have another default."""
    if weight_decay and optimizer_class.__name__ in _WITHOUT_DECAY:
        raise UserError(
            f"received optimizer.weight_decay={weight_decay}, but {name} has no decay that "
            "works in Keras: set it to 0, or use adamw."
        )
    accepted = inspect.signature(optimizer_class).parameters
    names = [n for n in ("weight_decay", "adam_weight_decay") if n in accepted]
    return {n: weight_decay for n in names if weight_decay or accepted[n].default is not None}


def _check_arguments(name: str, optimizer_class: type, arguments: dict) -> None:
    accepted = set(inspect.signature(optimizer_class).parameters)
    reserved = {"learning_rate", "weight_decay"}
    # The step sums gradients and averages weights itself, in the right order.
    reserved |= {"gradient_accumulation_steps", "loss_scale_factor", "use_ema"}
    for argument in arguments:
        if argument in reserved:
            raise UserError(
                f"received optimizer.arguments.{argument}, which is not passed on: use "
                f"the config's own field ({_own_field(argument)})."
            )
        if argument not in accepted:
            raise UserError(
                f"received optimizer.arguments.{argument}, which {name} does not take. "
                f"{did_you_mean(argument, accepted - reserved)} "
                "--config.optimizer.arguments={} takes all of them away."
            )


def _own_field(argument: str) -> str:
    own = {
        "gradient_accumulation_steps": "accumulation",
        "loss_scale_factor": "precision",
        "use_ema": "ema.decay",
    }
    return own.get(argument, f"optimizer.{argument}")
