"""Builds the page: what the templates show, in the order in which they show it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from tfaccel import results
from tfaccel.errors import UserError, one_line
from tfaccel.report import answers, charts, classes, runs, words
from tfaccel.report.runs import Run

_STATIC = Path(__file__).parent / "static"
_COMPARISON = "comparison.html"
# The share of the time from which a part is worth a look.
_NOTABLE = 0.1
_PARTS = {
    "step": "training steps",
    "input_wait": "waiting for input",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "compile": "compiling",
    "other": "other",
    "outside": "start-up and test",
}


def build(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Writes the page of one run, or one that compares several; returns its path.

    Args:
        folders: Runs' folders; a run may be finished, stopped or still going.
        out: Where to write; by default report.html in the run's folder, or
            comparison.html in the current one if there are several.

    Raises:
        UserError: If a folder holds no run, or the page cannot be written.

    Example:
        tfaccel.report.build(["runs/quickstart"])
    """
    found = [runs.read(folder) for folder in dict.fromkeys(map(Path, folders))]
    default = found[0].folder / results.PAGE if len(found) == 1 else Path(_COMPARISON)
    out = Path(out or default)
    if out.is_dir():
        raise UserError(f"received --out={out}, which is a folder, expected a file.")
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.write_text(html(found), encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {one_line(error)}") from error
    return out


def html(found: list[Run]) -> str:
    """Returns the page of one run, or of several side by side, as text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": words.number,
        "percent": words.percent,
        "duration": words.duration,
        "size": words.size,
    }
    environment.globals["static"] = _static
    name = "run.html" if len(found) == 1 else "comparison.html"
    content = _one(found[0]) if len(found) == 1 else _several(found)
    return environment.get_template(name).render(
        **content,
        data={
            "charts": charts.of(found),
            "clocks": charts.clocks(found),
            "names": runs.names(found),
        },
        built=time.strftime("%d %b %Y, %H:%M"),
    )


def _static(name: str) -> Markup:
    """A file of ours, put into the page as it is."""
    return Markup((_STATIC / name).read_text(encoding="utf-8"))


def _one(run: Run) -> dict[str, Any]:
    fields = answers.fields(run)
    return {
        "title": runs.names([run])[0],
        "run": run,
        "what": _what(run),
        "status": _status(run),
        "facts": [_quality(run), _time(run), _speed(run), _slowest(run)],
        "split": _split(run),
        "command": answers.command(run) if run.config else "",
        "go_on": answers.go_on(run) if run.config and not run.finished else "",
        "hardware": _hardware(run),
        "classes": classes.describe(run.predictions),
        "fields": fields,
        "changed": [field for field in fields if field["changed"]],
        "autos": [field for field in fields if field["answer"]],
        "machine": _machine(run),
    }


def _several(found: list[Run]) -> dict[str, Any]:
    names = runs.names(found)
    datasets = sorted({run.config["data.name"] for run in found if "data.name" in run.config})
    named = list(zip(names, found, strict=True))
    notes = [f"{name}: {note}" for name, run in named for note in run.notes]
    if len(datasets) > 1:
        notes.insert(
            0,
            f"These runs are of different datasets ({words.joined(datasets)}): their losses "
            "and accuracies do not compare.",
        )
    return {
        "title": f"{len(found)} runs",
        "notes": notes,
        "names": names,
        "rows": [
            {
                "name": name,
                "run": run,
                "status": _status(run),
                "what": _what(run),
                "best": run.best("val_accuracy"),
                "split": _split(run),
                "hardware": _hardware(run),
                "memory": _memory(run),
                "command": answers.command(run) if run.config else "",
            }
            for name, run in named
        ],
        "differing": answers.differing(found),
        "part_names": _PARTS,
    }


def _what(run: Run) -> str:
    """Model, data and length in one line."""
    config = run.config
    if not config:
        return "no config recorded"
    length = str(config.get("duration", "")).replace("ep", " epochs").replace("st", " steps")
    if run.total_steps and "steps" not in length:
        length += f" ({run.total_steps:,} steps)"
    return f"{config.get('model.name')} on {config.get('data.name')}, {length}"


def _status(run: Run) -> dict[str, str]:
    if run.finished:
        return {"kind": "good", "text": "finished"}
    of = f" of {run.total_steps:,}" if run.total_steps else ""
    return {"kind": "open", "text": f"not finished, step {run.steps:,}{of}"}


def _quality(run: Run) -> dict[str, str]:
    """How good: on the test images, else on the validation images, else in training."""
    final = run.report.get("final", {})
    if final:
        count = run.report.get("examples", {}).get("test")
        below = [f"loss {words.number(final.get('loss'))}"]
        below += [f"{count:,} images"] if count else []
        value = words.percent(final.get("accuracy"))
        return {"name": "Test accuracy", "value": value, "below": ", ".join(below)}
    for column, where in (("val_accuracy", "Validation"), ("accuracy", "Training")):
        steps, values = run.series(column)
        if len(steps):
            below = f"at step {int(steps[-1]):,}; not yet tested"
            value = words.percent(values[-1])
            return {"name": f"{where} accuracy", "value": value, "below": below}
    return {"name": "Accuracy", "value": words.UNKNOWN, "below": "nothing was evaluated"}


def _time(run: Run) -> dict[str, str]:
    parts = [f"{run.steps:,} steps"]
    if run.epochs:
        parts.append(f"{run.epochs:.1f}".removesuffix(".0") + " epochs")
    if len(run.starts) > 1:
        parts.append(f"{len(run.starts)} starts")
    began = run.starts[0]["time"] if run.starts else None
    return {
        "name": "Time",
        "value": words.duration(run.seconds),
        "below": ", ".join(parts),
        "began": _day(began),
    }


def _speed(run: Run) -> dict[str, str]:
    speed, whole = run.images_per_second, run.report.get("throughput", {})
    below = []
    if (whole.get("devices") or 1) > 1:
        below.append(f"{words.number(whole['images_per_second_per_device'])} a device")
    if whole.get("flops_per_second"):
        below.append(words.operations(whole["flops_per_second"]))
    if whole.get("mfu"):
        below.append(f"MFU {words.percent(whole['mfu'], 1)}")
    batch = run.config.get("global_batch_size")
    if len(below) < 2 and batch:
        below.append(f"{batch:,} images a step")
    value = f"{speed:,.0f}" if speed and math.isfinite(speed) else words.UNKNOWN
    return {"name": "Images a second", "value": value, "below": ", ".join(below)}


def _slowest(run: Run) -> dict[str, str]:
    """What to look at if it is to be faster: the largest part beside the steps."""
    name, shares = "What was slow", {part["name"]: part["share"] for part in _split(run)}
    step = shares.pop(_PARTS["step"], 0.0)
    if not shares:
        return {"name": name, "value": words.UNKNOWN, "below": "not recorded"}
    worst = max(shares, key=shares.get)
    if shares[worst] < _NOTABLE:
        below = f"training steps took {words.percent(step, 0)} of the time"
        return {"name": name, "value": "Nothing but the steps", "below": below}
    below = f"{words.percent(shares[worst], 0)} of the time; training steps "
    return {
        "name": name,
        "value": worst.capitalize(),
        "below": below + words.percent(step, 0),
    }


def _split(run: Run) -> list[dict[str, Any]]:
    """Where the time went; what no row of timing.csv covers is the start and the end."""
    seconds = {part: value for part, value in run.time_split.items() if value > 0}
    outside = (run.report.get("seconds") or 0.0) - sum(seconds.values())
    if seconds and outside > 0.5 and len(run.starts) < 2:
        seconds["outside"] = outside
    whole = sum(seconds.values())
    return [
        {
            "key": key,
            "name": _PARTS[key],
            "seconds": seconds[key],
            "share": seconds[key] / whole,
        }
        for key in _PARTS
        if key in seconds
    ]


def _hardware(run: Run) -> str:
    """The machine in one line."""
    hardware = run.hardware
    if not hardware:
        return "not recorded"
    gpus = hardware.get("gpus", [])
    kinds = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)]
    cpu = f"{hardware.get('cpus')} CPUs ({hardware.get('processor')})"
    memory = f"{hardware.get('memory_gib')} GiB memory"
    return ", ".join([*(kinds or ["no GPU"]), cpu, memory, str(hardware.get("system"))])


def _machine(run: Run) -> dict[str, str]:
    """The machine, a line a part; empty if it was not recorded."""
    named = {"memory_gib": "memory", "gpus": "GPUs", "cpus": "CPUs"}
    lines = {}
    for name, value in run.hardware.items():
        if name == "memory_gib":
            value = f"{value} GiB"
        elif isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
        lines[named.get(name, name.replace("_", " "))] = str(value)
    memory = _memory(run)
    if memory["host"]:
        lines["most host memory"] = words.size(memory["host"])
    for index, peak in enumerate(memory["gpus"]):
        lines[f"most memory on GPU {index}"] = words.size(peak)
    return lines


def _memory(run: Run) -> dict[str, Any]:
    """The most memory seen: {"host": bytes, "gpus": [bytes]}, None where unknown."""
    _, host = run.series("host_memory_bytes", run.timing)
    recorded = run.report.get("memory", {})
    return {
        "host": recorded.get("host_bytes") or (host.max() if len(host) else None),
        "gpus": recorded.get("gpu_peak_bytes") or [],
    }


def _day(moment: str | None) -> str:
    if not moment:
        return ""
    return time.strftime("%d %b %Y, %H:%M", time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S"))
