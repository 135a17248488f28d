"""The curves of a page, as data that static/page.js hands to uPlot."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tfaccel.report.runs import Run

# A screen has no more pixels; a run that logs every step would fill megabytes.
_MOST_POINTS = 1600
_NOT_METRICS = ("step", "epoch", "learning_rate")


def of(runs: list[Run]) -> list[dict[str, Any]]:
    """Returns the charts of one run, or of several with their curves overlaid.

    Returns:
        A list of `{"title", "unit", "zero", "series"}`; a series is
        `{"label", "run", "style", "x": steps, "y": values}`, where a value that is
        not finite is None.
    """
    charts = []
    for name in _metrics(runs):
        title = name.replace("_", " ").capitalize()
        scale, unit = (100, "%") if name == "accuracy" else (1, "")
        training = ("training", "line", _column(name, scale))
        validation = ("validation", "marked", _column(f"val_{name}", scale))
        if len(runs) == 1:
            charts.append(_chart(title, unit, runs, [training, validation]))
        else:
            charts.append(_chart(f"{title}, training", unit, runs, [training]))
            charts.append(_chart(f"{title}, validation", unit, runs, [validation]))
    for title, unit, curves in (
        ("Learning rate", "", [("learning rate", "line", _column("learning_rate"))]),
        ("Throughput", "images/s", [("throughput", "line", _timing("images_per_second"))]),
        ("Waiting for input", "% of a step", [("waiting", "line", _waiting)]),
        ("Memory", "GiB", _memory(runs)),
    ):
        charts.append(_chart(title, unit, runs, curves) | {"zero": True})
    return [chart for chart in charts if chart["series"]]


def clocks(runs: list[Run]) -> list[dict[str, Any]]:
    """Returns, a run, what turns steps into epochs and into seconds.

    Returns:
        A list of `{"steps_per_epoch": number or None, "steps", "seconds"}`: the
        seconds at which each of `steps` was done.
    """
    found = []
    for run in runs:
        steps, seconds = run.series("seconds", run.timing)
        steps, seconds = thinned(steps, np.cumsum(seconds))
        per_epoch = run.steps_per_epoch
        found.append({"steps_per_epoch": per_epoch, "steps": steps, "seconds": seconds})
    return found


def thinned(steps: np.ndarray, values: np.ndarray) -> tuple[list, list]:
    """Returns at most `_MOST_POINTS` points as lists: the least and most of each stretch.

    A value that is not finite becomes None, and stays, whatever is beside it.

    Args:
        steps: float [n], rising.
        values: float [n].
    """
    if len(steps) > _MOST_POINTS:
        kept = {0, len(steps) - 1}
        for stretch in np.array_split(np.arange(len(steps)), _MOST_POINTS // 2 - 1):
            part = values[stretch]
            if np.isfinite(part).all():
                kept |= {int(stretch[part.argmin()]), int(stretch[part.argmax()])}
            else:
                kept.add(int(stretch[np.flatnonzero(~np.isfinite(part))[0]]))
                kept.add(int(stretch[0]))
        steps, values = steps[sorted(kept)], values[sorted(kept)]
    return (
        [int(step) for step in steps],
        [float(f"{value:.5g}") if np.isfinite(value) else None for value in values],
    )


def _chart(title: str, unit: str, runs: list[Run], curves: list[tuple]) -> dict[str, Any]:
    """A chart of (label, style, function that reads a run's steps and values) a curve."""
    series = []
    for index, run in enumerate(runs):
        for label, style, read in curves:
            x, y = thinned(*read(run))
            series.append({"label": label, "run": index, "style": style, "x": x, "y": y})
    shown = [one for one in series if one["x"]]
    return {"title": title, "unit": unit, "zero": False, "series": shown}


def _column(name: str, scale: float = 1):
    def read(run):
        steps, values = run.series(name)
        return steps, scale * values

    return read


def _timing(name: str, scale: float = 1):
    def read(run):
        steps, values = run.series(name, run.timing)
        return steps, scale * values

    return read


def _waiting(run: Run) -> tuple[np.ndarray, np.ndarray]:
    rows = [row for row in run.timing if row.keys() >= {"input_wait_seconds", "step_seconds"}]
    steps = np.array([row["step"] for row in rows])
    wait = np.array([row["input_wait_seconds"] for row in rows])
    step = np.array([row["step_seconds"] for row in rows])
    return steps, 100 * wait / np.maximum(wait + step, 1e-9)


def _metrics(runs: list[Run]) -> list[str]:
    """Names of metrics, without "val_": loss and accuracy first."""
    columns = {name.removeprefix("val_") for run in runs for row in run.metrics for name in row}
    first = [name for name in ("loss", "accuracy") if name in columns]
    return first + sorted(columns - {*first, *_NOT_METRICS})


def _memory(runs: list[Run]) -> list[tuple]:
    """One run: host and each GPU; several: the first GPU, or else the host."""
    columns = sorted({name for run in runs for row in run.timing for name in row})
    gpus = [name for name in columns if re.fullmatch(r"gpu\d+_memory_bytes", name)]
    host = [("host", "line", _timing("host_memory_bytes", 2**-30))]
    gpu = [(f"GPU {name[3:-13]}", "line", _timing(name, 2**-30)) for name in gpus]
    return host + gpu if len(runs) == 1 else (gpu or host)[:1]
