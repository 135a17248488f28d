"""Learning-rate schedules: a pure function of the step."""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Literal

from tfaccel import fields
from tfaccel.errors import UserError
from tfaccel.fields import Duration, Share
from tfaccel.lazy import keras
from tfaccel.log import logger

Warmup = Literal["auto"] | Duration
Schedule = Literal["constant", "cosine", "linear", "one_cycle", "steps"]


def check(
    *,
    name: Schedule,
    warmup: Warmup,
    final_share: Share,
    boundaries: str,
    factor: Share,
) -> None:
    """Refuses combinations of `build`'s arguments that cannot work."""
    fields.check(Schedule, name, "schedule.name")
    fields.check(Warmup, warmup, "schedule.warmup")
    del final_share, factor
    for boundary in _split(boundaries):
        fields.check(Duration, boundary, "schedule.boundaries")
    if (name == "steps") != bool(_split(boundaries)):
        raise UserError(
            f"received schedule.name={name} with schedule.boundaries={boundaries!r}: "
            "boundaries such as '50%,75%' go with 'steps', and only with it."
        )


def build(
    learning_rate: float,
    total_steps: int,
    steps_per_epoch: Fraction,
    *,
    name: Schedule = "cosine",
    warmup: Warmup = "auto",
    final_share: Share = 0.0,
    boundaries: str = "",
    factor: Share = 0.1,
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate over the run.

    Every schedule rises linearly over `warmup`, to `learning_rate` at its last
    step. "cosine", "linear" and "one_cycle" then fall to `final_share` of it, which
    they would reach at the step after the run's last.

    Args:
        learning_rate: The highest rate.
        total_steps: Length of the run.
        steps_per_epoch: Examples divided by the batch size.
        name: "constant"; "cosine" (Loshchilov and Hutter, "SGDR", 2016);
            "linear"; "one_cycle" (Smith, "Super-Convergence", 2017: linear up
            and down); "steps".
        warmup: How long to rise; "auto" is 30 % of the run for "one_cycle", else
            nothing.
        final_share: Share of the rate that is left at the end.
        boundaries: For "steps": durations such as "50%,75%".
        factor: For "steps": what each boundary multiplies the rate by.

    Returns:
        A number for "constant" without warm-up (so that ReduceLROnPlateau can
        change it), else a Keras schedule.

    Example:
        schedule = build(0.4, 1000, Fraction(98), name="one_cycle", warmup="20%")
    """
    check(
        name=name,
        warmup=warmup,
        final_share=final_share,
        boundaries=boundaries,
        factor=factor,
    )

    def steps(duration):
        return fields.duration_steps(
            duration, steps_per_epoch=steps_per_epoch, total_steps=total_steps
        )

    if warmup == "auto":
        warmup = "30%" if name == "one_cycle" else "0st"
        why = f"auto: {warmup} of the run" if name == "one_cycle" else f"auto for {name}"
        logger.info("schedule.warmup: %d steps (%s)", steps(warmup), why)
    warmup_steps = steps(warmup)
    if warmup_steps >= total_steps:
        raise UserError(
            f"received schedule.warmup={warmup} = {warmup_steps} steps, expected less "
            f"than the run's {total_steps} steps."
        )
    if name == "constant" and warmup_steps == 0:
        return learning_rate
    curves = importlib.import_module("tfaccel.schedule_curves")
    return curves.WarmupThen(
        learning_rate,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        shape="linear" if name == "one_cycle" else name,
        final_share=final_share,
        boundaries=[steps(boundary) for boundary in _split(boundaries)],
        factor=factor,
    )


def _split(boundaries: str) -> list[str]:
    return [part.strip() for part in boundaries.split(",") if part.strip()]
