"""A run's folder: who may write to it, what it holds."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import tfaccel
from tfaccel import config as config_lib
from tfaccel import host
from tfaccel.errors import UserError, one_line

CONFIG = "config.json"
STARTS = "starts.json"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.csv"
TIMING = "timing.csv"
EVENTS = "tensorboard"
PREDICTIONS = "predictions.npz"
MODEL = "model.keras"
REPORT = "report.json"
PAGE = "report.html"
# Where a run may differ from what it was started with and still be the same run.
_FREE_ON_RESUME = ("devices.", "checkpoint.", "guard.", "log_every", "tensorboard.")


def check_workdir(workdir: Path, config: dict[str, Any]) -> None:
    """Refuses a folder that cannot be written or holds another run; leaves no trace.

    Args:
        workdir: The run's folder; need not exist.
        config: The run's flat config.

    Raises:
        UserError: Says what is in the way.
    """
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"received --workdir={workdir}, which is a file, expected a folder.")
    old = read_json(workdir / CONFIG)
    if old is not None:
        changed = [
            line
            for line in config_lib.differences(old, config)
            if not line.startswith(_FREE_ON_RESUME)
        ]
        if changed:
            raise UserError(
                f"{workdir} holds a run of another config ({'; '.join(changed)}): use "
                "another --workdir, or the values it was started with."
            )
    parent = workdir
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK | os.X_OK) or not _can_write(parent):
        raise UserError(
            f"received --workdir={workdir}, but {parent} cannot be written to: choose "
            "another folder, or mend its permissions."
        )


def run_bytes(model, checkpoints: int) -> int:
    """Returns about how much a run writes.

    Args:
        model: The compiled model.
        checkpoints: How many checkpoints are kept; one more is being written.
    """
    weights = 4 * model.count_params()
    slots = 4 * sum(math.prod(v.shape) for v in model.optimizer.variables)
    return (checkpoints + 1) * (weights + slots) + weights + 2**20


def check_disk(workdir: Path, needed_bytes: int) -> None:
    """Refuses to start a run that the disk cannot hold.

    Raises:
        UserError: With the space there is and the space it takes.
    """
    free = host.free_disk_bytes(workdir)
    if free < needed_bytes:
        raise UserError(
            f"{workdir} is on a disk with {free / 2**20:.0f} MiB free, but this run writes "
            f"about {needed_bytes / 2**20:.0f} MiB: free some space, lower "
            "checkpoint.keep, or choose another --workdir."
        )


@contextlib.contextmanager
def disk_errors(workdir: Path) -> Iterator[None]:
    """Turns a full disk or lost permission, met while running, into one line."""
    try:
        yield
    except OSError as error:
        inside = error.filename and Path(error.filename).is_relative_to(workdir)
        if not inside and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{workdir} cannot be written any more ({one_line(error)}): checkpoints up to "
            "now are whole; free some space and start again."
        ) from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file under a temporary name, then renames it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns a JSON file's content, or None if there is no such file.

    Raises:
        UserError: If it is damaged.
    """
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError(f"holds a {type(content).__name__}, expected an object")
        return content
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def write_measured(
    path: Path, name: str, hardware: dict[str, Any], found: Any, ratios: dict[str, Any]
) -> None:
    """Writes what a benchmark or self-test has measured, in the form of all of them.

    Args:
        path: The JSON file.
        name: What was measured.
        hardware: On what; see `tfaccel.devices.describe`.
        found: The figures.
        ratios: Figures by figures, which another machine may be compared with.
    """
    content = {"name": name, "hardware": hardware, "versions": versions()}
    write_json(path, {**content, "results": found, "ratios": ratios})


def versions() -> dict[str, str]:
    """Returns the versions a result depends on."""
    packages = ("tensorflow", "keras", "numpy", "tensorflow-datasets")
    found = {name: metadata.version(name) for name in packages}
    return {"tfaccel": tfaccel.__version__, "python": platform.python_version(), **found}


def note_start(workdir: Path, config: dict[str, Any], start: dict[str, Any]) -> None:
    """Writes down that a run starts or goes on: config.json, and a line in starts.json.

    Args:
        workdir: The run's folder.
        config: The run's flat config.
        start: "command", "decided", "first_step" and what else a reader wants to know
            even of a run that never finishes.
    """
    write_json(workdir / CONFIG, config)
    starts = (read_json(workdir / STARTS) or {}).get("starts", [])
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_json(workdir / STARTS, {"starts": [*starts, {"time": now, **start}]})


def _can_write(folder: Path) -> bool:
    """Tries it: root may pass the permission check on a read-only file system."""
    probe = folder / f".tfaccel_probe_{os.getpid()}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError:
        return False
    return True
