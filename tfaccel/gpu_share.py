"""Which of a host's GPUs a worker takes."""

from __future__ import annotations

import os

from tfaccel.errors import UserError
from tfaccel.lazy import tf


def share(
    count: int, asked: int, *, place: int = 0, neighbours: int = 1, shared_out: bool = False
) -> range:
    """Returns which of the visible GPUs a worker takes.

    Args:
        count: How many GPUs this process sees.
        asked: How many it was told to take; 0 takes its share.
        place: Its place among the workers of this host.
        neighbours: How many workers this host has.
        shared_out: Whether others see other GPUs, so that all seen are its own.

    Raises:
        UserError: If there are not enough.

    Example:
        >>> list(share(8, 0, place=1, neighbours=2))
        [4, 5, 6, 7]
    """
    if shared_out:
        place, neighbours = 0, 1
    each = count // neighbours
    if asked > each:
        whose = f" for each of {neighbours} workers" if neighbours > 1 else ""
        raise UserError(
            f"received distribution.gpus={asked}, but there are {each}{whose} ({count} "
            "visible): ask for fewer, or make more visible (devices.visible, "
            "CUDA_VISIBLE_DEVICES)."
        )
    if count and not each:
        raise UserError(
            f"this host has {count} GPU(s) for {neighbours} workers: start one worker a GPU, "
            "or train on CPUs with devices.visible=none."
        )
    return range(place * each, place * each + (asked or each))


def take(asked: int, place: int, neighbours: int, *, shared_out: bool) -> int:
    """Makes a worker's GPUs the only visible ones; returns how many.

    Args:
        asked: How many it was told to take; 0 takes its share.
        place: Its place among the workers of this host.
        neighbours: How many workers this host has.
        shared_out: Whether the GPUs that it sees are its own.

    Raises:
        UserError: If there are not enough.
    """
    visible = tf.config.get_visible_devices("GPU")
    # One visible GPU that somebody chose was chosen for this worker alone.
    shared_out = shared_out or (len(visible) == 1 and "CUDA_VISIBLE_DEVICES" in os.environ)
    own = share(len(visible), asked, place=place, neighbours=neighbours, shared_out=shared_out)
    if len(own) < len(visible):
        tf.config.set_visible_devices([visible[index] for index in own], "GPU")
    return len(own)
