"""One exported file: run in its own runtime, compared, weighed and timed."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.errors import UserError, one_line
from tfaccel.export.formats import FORMATS

TOLERANCE = 1e-4
BATCHES = (1, 32)
_SECONDS = 1.0
_PROBE = Path(__file__).with_name("probe.py")


class Measured:
    """What runtimes made of artefacts: outputs and latencies by format."""

    def __init__(self):
        self.outputs: dict[str, np.ndarray] = {}
        self.latency: dict[str, list[dict[str, Any]]] = {}


def measure(
    paths: dict[str, Path], inputs: np.ndarray, *, threads: Sequence[int] = (1, 2)
) -> Measured:
    """Runs each artefact in a fresh process of its own runtime, without tfaccel.

    Artefacts of one runtime share a process and are timed in alternation.

    Args:
        paths: {format: artefact}.
        inputs: What the artefacts take, [n, height, width, channels].
        threads: Numbers of threads to time with, on the CPU; empty for no times.

    Raises:
        UserError: If a runtime refuses an artefact.
    """
    measured = Measured()
    for count in threads or (1,):
        for runtime in dict.fromkeys(FORMATS[name].runtime for name in paths):
            some = {n: path for n, path in paths.items() if FORMATS[n].runtime == runtime}
            task = {
                "runtime": runtime,
                "threads": count,
                "artefacts": {name: str(path.resolve()) for name, path in some.items()},
                "batches": BATCHES if threads else (),
                "seconds": _SECONDS,
            }
            outputs, seconds = _probe(task, inputs)
            for name in some:
                measured.outputs.setdefault(name, outputs[name])
                for batch, times in seconds[name].items():
                    measured.latency.setdefault(name, []).append(
                        {"batch": int(batch), "threads": count, **_milliseconds(times)}
                    )
    return measured


def compare(name: str, outputs: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Returns how far an artefact's outputs are from the float32 model's.

    Args:
        name: The format.
        outputs: float32 [n, classes].
        reference: Those of the model in float32, [n, classes].

    Raises:
        UserError: If a float format differs by `TOLERANCE` or more, or in an
            argmax whose top two are further apart than that.
    """
    if outputs.shape != reference.shape or outputs.dtype != np.float32:
        raise UserError(
            f"{name}: its runtime gives {outputs.dtype} of {outputs.shape}, the model "
            f"float32 of {reference.shape}; nothing was exported."
        )
    difference = float(np.abs(outputs - reference).max())
    first, second = np.sort(reference, axis=1)[:, :-3:-1].T
    differs = outputs.argmax(axis=1) != reference.argmax(axis=1)
    decided = int(np.sum(differs & (first - second >= TOLERANCE)))
    # Written so that a NaN fails.
    if FORMATS[name].exact and not (difference < TOLERANCE and decided == 0):
        raise UserError(
            f"{name}: outputs differ from the model's by up to {difference:.2e} (allowed: "
            f"less than {TOLERANCE:g}) and {decided} of {len(outputs)} predictions changed; "
            "nothing was exported."
        )
    return {"largest_difference": difference, "predictions_changed": int(differs.sum())}


def check_int8(accuracy: float, reference: float, count: int, points: float) -> None:
    """Refuses an int8 artefact that lost more accuracy than allowed.

    Args:
        accuracy: Share of the images that the artefact gets right.
        reference: Share that the float32 model gets right.
        count: Images in all.
        points: Percentage points that may be lost; one image always may.
    """
    lost = 100 * (reference - accuracy)
    if lost > max(points, 100 / count) + 1e-9:
        raise UserError(
            f"litert_int8: {100 * accuracy:.2f} % of {count} images right, the float32 model "
            f"{100 * reference:.2f} %: {lost:.2f} points lost, allowed are {points:g}; nothing "
            "was exported. Leave litert_int8 out, or allow more with int8_points."
        )


def sizes(path: Path) -> dict[str, int]:
    """Returns an artefact's bytes, and its bytes after gzip -9 of each file."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    content = [file.read_bytes() for file in files]
    return {
        "bytes": sum(map(len, content)),
        "gzip_bytes": sum(len(gzip.compress(data, 9, mtime=0)) for data in content),
    }


def _probe(task: dict[str, Any], inputs: np.ndarray):
    with tempfile.TemporaryDirectory() as folder:
        files = {"inputs": str(Path(folder, "inputs.npy")), "outputs": folder}
        np.save(files["inputs"], inputs)
        task_file = Path(folder, "task.json")
        task_file.write_text(json.dumps({**task, **files}))
        done = subprocess.run(
            [sys.executable, "-c", _PROBE.read_text(), str(task_file)],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        answer = Path(folder, "answer.json")
        if not answer.is_file():
            names = ", ".join(task["artefacts"])
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise UserError(
                f"{names}: the runtime ended with status {done.returncode} "
                f"({one_line(last)}); nothing was exported."
            )
        found = json.loads(answer.read_text())
        for name, error in found["errors"].items():
            raise UserError(
                f"{name}: its own runtime does not take it, in a process without tfaccel "
                f"({one_line(error)}); nothing was exported."
            )
        outputs = {name: np.load(Path(folder, f"{name}.npy")) for name in task["artefacts"]}
        return outputs, found["seconds"]


def _milliseconds(seconds: list[float]) -> dict[str, float]:
    median, p95 = 1000 * np.percentile(seconds, [50, 95])
    return {"median_ms": round(median, 4), "p95_ms": round(p95, 4), "runs": len(seconds)}
