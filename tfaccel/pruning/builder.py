"""Pruning from a config, or alone in somebody else's project."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal

from tfaccel import fields
from tfaccel.errors import UserError
from tfaccel.fields import Duration, Positive, Share
from tfaccel.plan import Plan
from tfaccel.pruning import kernels, selection

if TYPE_CHECKING:
    import keras

    from tfaccel.pruning.pruner import Pruner

Schedule = Literal["polynomial", "constant"]
Threshold = Literal["layer", "global"]


def check(
    *,
    final_sparsity: Share,
    initial_sparsity: Share,
    schedule: Schedule,
    threshold: Threshold,
    m_by_n: str,
    layers: dict | None,
) -> None:
    """Refuses combinations of `build`'s arguments that cannot work."""
    fields.check(Share, final_sparsity, "pruning.final_sparsity")
    fields.check(Share, initial_sparsity, "pruning.initial_sparsity")
    fields.check(Schedule, schedule, "pruning.schedule")
    fields.check(Threshold, threshold, "pruning.threshold")
    layers = dict(layers or {})
    if not final_sparsity:
        _check_off(m_by_n, layers)
        return
    for pattern, value in layers.items():
        fields.check(Share, value, f"pruning.layers.{pattern}")
    named = {f"pruning.layers.{pattern}": value for pattern, value in layers.items()}
    for name, value in {"pruning.final_sparsity": final_sparsity, **named}.items():
        _check_target(name, value, initial_sparsity, schedule)
        if m_by_n and value:
            _check_m_by_n(name, value, m_by_n, schedule, threshold)
        if threshold == "global" and value not in (0, final_sparsity):
            raise UserError(
                f"received {name}={value} with pruning.threshold=global, which has one "
                f"target for all layers: use 0 or {final_sparsity}, or threshold=layer."
            )


def build(
    model: keras.Model,
    plan: Plan | None = None,
    *,
    final_sparsity: Share = 0.0,
    schedule: Schedule = "polynomial",
    initial_sparsity: Share = 0.0,
    power: Positive = 3.0,
    begin: Duration = "20%",
    end: Duration = "70%",
    frequency: Duration = "1%",
    threshold: Threshold = "layer",
    m_by_n: str = "",
    layers: dict | None = None,
) -> list[Pruner]:
    """Returns [a callback that prunes the model], or [] if `final_sparsity` is 0.

    The kernels of all layers are pruned, frozen ones and those of nested models, too;
    biases, normalisation and depthwise convolutions never are. From `end` on the
    masks stay as they are, while the weights that are left train on.

    Args:
        model: A built model, compiled or not.
        plan: The run's length (see `tfaccel.plan`); if None, that of the `fit`
            which the callback is given to.
        final_sparsity: Share of the weights that are zero from `end` on; 0 is off.
        schedule: TFMOT's "polynomial" (Zhu and Gupta, "To prune, or not to prune",
            2017) or "constant".
        initial_sparsity: Where "polynomial" starts.
        power: The exponent of "polynomial".
        begin: When to prune first.
        end: When to prune last.
        frequency: How long between two updates of the masks, at least one step.
        threshold: Whether each "layer" reaches the target, or all of them together,
            with one "global" threshold.
        m_by_n: "2:4" prunes 2 of each 4 consecutive input channels; needs
            final_sparsity=0.5 and schedule="constant".
        layers: Sparsity by layer name or pattern, such as {"head": 0, "block*": 0.9};
            the others get `final_sparsity`.

    Raises:
        UserError: If a pattern matches nothing, the run is too short for the
            schedule, or the target cannot be reached.

    Example:
        (pruner,) = build(model, plan, final_sparsity=0.8, end="50%")
    """
    check(
        final_sparsity=final_sparsity,
        initial_sparsity=initial_sparsity,
        schedule=schedule,
        threshold=threshold,
        m_by_n=m_by_n,
        layers=layers,
    )
    if not final_sparsity:
        return []
    targets = kernels.targets(model, final_sparsity, dict(layers or {}))
    rule = selection.build(targets, threshold, m_by_n)
    timetables = importlib.import_module("tfaccel.pruning.timetable")
    when = timetables.Schedule(schedule, initial_sparsity, power, begin, end, frequency)
    pruners = importlib.import_module("tfaccel.pruning.pruner")
    return [pruners.Pruner(model, rule, when, plan)]


def prune(model: keras.Model, plan: Plan | None = None, **options) -> Pruner:
    """Returns a callback that prunes a model in any project's `model.fit`.

    The masks are held as constraints of the kernels, so that the optimizer itself
    applies them; what is saved holds the user's own constraints only, and loads
    without tfaccel.

    Args:
        model: A built model, compiled or not.
        plan: The run's length; if None, that of the `fit`.
        options: As for `build`; `final_sparsity` is needed.

    Example:
        pruner = tfaccel.pruning.prune(model, final_sparsity=0.8)
        best = keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)
        model.fit(x, y, epochs=20, callbacks=[pruner, *pruner.select(best)])
    """
    pruners = build(model, plan, **options)
    if not pruners:
        raise UserError("received no final_sparsity, expected the share of weights to prune.")
    return pruners[0]


def _check_off(m_by_n: str, layers: dict) -> None:
    given = {"pruning.m_by_n": m_by_n, "pruning.layers": layers}
    for name, value in given.items():
        if value:
            raise UserError(
                f"received {name}={value} with pruning.final_sparsity=0.0, which prunes "
                "nothing: set final_sparsity, too."
            )


def _check_target(name: str, value: float, initial: float, schedule: str) -> None:
    if value >= 1:
        raise UserError(f"received {name}={value}, expected less than 1: some must be left.")
    if schedule == "polynomial" and 0 < value < initial:
        raise UserError(
            f"received {name}={value}, expected at least pruning.initial_sparsity={initial}."
        )


def _check_m_by_n(name: str, value: float, m_by_n: str, schedule: str, threshold: str) -> None:
    m, n = selection.parse_m_by_n(m_by_n)
    if value != m / n:
        raise UserError(
            f"received {name}={value} with pruning.m_by_n={m_by_n}, whose sparsity is "
            f"{m / n:g}: use that."
        )
    if (schedule, threshold) != ("constant", "layer"):
        raise UserError(
            f"received pruning.m_by_n={m_by_n} with schedule={schedule} and threshold="
            f"{threshold}: each group has its zeros or not, so use schedule=constant and "
            "threshold=layer."
        )
