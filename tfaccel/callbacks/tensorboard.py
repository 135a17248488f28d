"""TensorBoard, from a config."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tfaccel import fields
from tfaccel.errors import UserError
from tfaccel.event_files import EventLog, available
from tfaccel.fields import Duration, Flag
from tfaccel.log import logger
from tfaccel.plan import Plan


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to write for TensorBoard.

    Args:
        log: Where to write; None if TensorBoard is off.
        images: Whether to write pictures.
        gradient_norms: Steps between measurements of gradients; 0 for none.
    """

    log: EventLog | None
    images: bool
    gradient_norms: int


def check(*, enabled: Flag, images: bool, gradient_norms: Duration) -> None:
    """Refuses what needs a package that is not there."""
    del images
    if enabled is True and not available():
        raise UserError(
            "received tensorboard.enabled=True, but the package tensorboard is not "
            "installed: pip install 'tfaccel[tensorboard]', or leave the field at auto."
        )
    if enabled is False and not gradient_norms.startswith("0"):
        raise UserError(
            f"received tensorboard.gradient_norms={gradient_norms} with "
            "tensorboard.enabled=False: they are written nowhere else. Leave one out."
        )


def build(
    directory: Path,
    plan: Plan,
    *,
    enabled: Flag = "auto",
    images: bool = True,
    gradient_norms: Duration = "0st",
) -> Choice:
    """Returns what to write for TensorBoard; "auto" is logged.

    Args:
        directory: The folder.
        plan: The run's length, to resolve `gradient_norms`.
        enabled: Whether to write anything. "auto" does if the package tensorboard
            is installed (the extra `tfaccel[tensorboard]`).
        images: Write augmented inputs, the worst mistakes of each epoch, and at the
            end the confusion matrix.
        gradient_norms: How often to measure each layer's gradient; "0st" never.

    Raises:
        UserError: If it is asked for and the package is not there.
    """
    fields.check(Flag, enabled, "tensorboard.enabled")
    check(enabled=enabled, images=images, gradient_norms=gradient_norms)
    on = available() if enabled == "auto" else enabled
    if not on:
        why = "as asked" if enabled is False else "auto: not installed; tfaccel[tensorboard]"
        logger.info("tensorboard: off (%s)", why)
        return Choice(None, False, 0)
    why = "auto: it is installed" if enabled == "auto" else "as asked"
    logger.info("tensorboard: on (%s): tensorboard --logdir=%s", why, directory)
    return Choice(EventLog(directory), images, plan.steps(gradient_norms))


def profile_steps(text: str) -> tuple[int, int]:
    """Returns (10, 20) for "10:20".

    Raises:
        UserError: If the text is no range of steps.
    """
    first, colon, last = text.partition(":")
    if colon and first.isdecimal() and last.isdecimal() and int(first) < int(last):
        return int(first), int(last)
    raise UserError(
        f"received --profile_steps={text}, expected the first step, counted from 0, and the "
        "step to stop before, such as 10:20."
    )
