"""A run's folder, read as far as it was written (docs/results.md says what is in it)."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import results
from tfaccel.errors import UserError, one_line

TIME_PARTS = ("input_wait", "step", "evaluation", "checkpoint", "compile", "other")
Rows = list[dict[str, float]]


@dataclasses.dataclass
class Run:
    """What a run's folder holds; each part may be empty.

    Args:
        folder: Where it lies.
        config: The flat config.
        starts: One entry each time it was started or went on.
        metrics: The rows of metrics.csv; a cell that is empty there is no key here.
        timing: The rows of timing.csv.
        predictions: The arrays of predictions.npz.
        report: report.json; empty for a run that is not finished.
        notes: What a reader should know of the folder's state, a sentence each.
    """

    folder: Path
    config: dict[str, Any]
    starts: list[dict[str, Any]]
    metrics: Rows
    timing: Rows
    predictions: dict[str, np.ndarray]
    report: dict[str, Any]
    notes: list[str]

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.report)

    @property
    def last_start(self) -> dict[str, Any]:
        """The newest entry of `starts`, or an empty one."""
        return self.starts[-1] if self.starts else {}

    @property
    def steps(self) -> int:
        """Steps done, as far as the folder tells."""
        rows = self.metrics[-1:] + self.timing[-1:]
        last = max((int(row["step"]) for row in rows), default=0)
        return self.report.get("steps", last)

    @property
    def total_steps(self) -> int | None:
        """Steps the run was to take."""
        return self.last_start.get("total_steps")

    @property
    def steps_per_epoch(self) -> float | None:
        """Steps of an epoch, which need not be whole."""
        examples = self.report.get("examples", {}).get("train")
        batch = self.config.get("global_batch_size")
        worked_out = examples / batch if examples and batch else None
        return self.last_start.get("steps_per_epoch", worked_out)

    @property
    def epochs(self) -> float | None:
        """Epochs done."""
        return self.steps / self.steps_per_epoch if self.steps_per_epoch else None

    @property
    def time_split(self) -> dict[str, float]:
        """Seconds spent on each part, over all restarts; empty if it was not recorded."""
        if self.report.get("time"):
            return {part: self.report["time"].get(part) or 0.0 for part in TIME_PARTS}
        sums = {
            part: sum(row.get(f"{part}_seconds", 0.0) for row in self.timing)
            for part in TIME_PARTS
        }
        return sums if any(sums.values()) else {}

    @property
    def seconds(self) -> float | None:
        """Wall time: of the whole run, or as far as timing.csv tells."""
        recorded = sum(self.time_split.values())
        whole = self.report.get("seconds") or 0.0
        return max(recorded, whole) or None

    @property
    def images_per_second(self) -> float | None:
        """Speed of the training steps and the wait for their batches."""
        if "throughput" in self.report:
            return self.report["throughput"].get("images_per_second")
        speeds = [row["images_per_second"] for row in self.timing if "images_per_second" in row]
        return float(np.median(speeds)) if speeds else None

    @property
    def hardware(self) -> dict[str, Any]:
        """What it ran on."""
        return self.report.get("hardware") or self.last_start.get("hardware") or {}

    @property
    def versions(self) -> dict[str, str]:
        """What it ran with."""
        return self.report.get("versions") or self.last_start.get("versions") or {}

    def best(self, metric: str) -> dict[str, float] | None:
        """Returns the row in which a metric was best: lowest for losses, else highest."""
        rows = [row for row in self.metrics if math.isfinite(row.get(metric, math.nan))]
        choose = min if "loss" in metric else max
        return choose(rows, key=lambda row: row[metric], default=None)

    def series(self, column: str, rows: Rows | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns a column's (steps, values), without empty cells.

        Args:
            column: Its name.
            rows: `metrics` or `timing`; `metrics` by default.
        """
        rows = self.metrics if rows is None else rows
        found = [(row["step"], row[column]) for row in rows if column in row]
        steps, values = zip(*found, strict=True) if found else ((), ())
        return np.array(steps, float), np.array(values, float)


def read(folder: str | Path) -> Run:
    """Returns what a run's folder holds, finished or not.

    Args:
        folder: The `--workdir` of a run, or a folder with a metrics.csv that
            `tfaccel.callbacks.MetricsCSV` wrote.

    Raises:
        UserError: If it is no run's folder.
    """
    folder, notes = Path(folder), []
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"received the run {folder}, which {what}, expected a run's folder.")
    config = results.read_json(folder / results.CONFIG)
    if config is None and not (folder / results.METRICS).is_file():
        raise UserError(
            f"received the run {folder}, which holds neither {results.CONFIG} nor "
            f"{results.METRICS}, expected a --workdir of tfaccel.train."
        )
    found = Run(
        folder=folder,
        config=config or {},
        starts=(results.read_json(folder / results.STARTS) or {}).get("starts", []),
        metrics=_read_csv(folder / results.METRICS, notes),
        timing=_read_csv(folder / results.TIMING, notes),
        predictions=_read_npz(folder / results.PREDICTIONS, notes),
        report=results.read_json(folder / results.REPORT) or {},
        notes=notes,
    )
    found.notes += _notes(found)
    return found


def names(runs: list[Run]) -> list[str]:
    """Returns a short name a run: its folder's, with parents where two are the same."""
    parts = [run.folder.resolve().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(set(parts)):
            break
    return short


def _read_csv(path: Path, notes: list[str]) -> Rows:
    """A run that goes on, or was killed, may have left half a row at the end."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    whole, _, half = text.rpartition("\n")
    rows, dropped = [], int(bool(half.strip()))
    table = csv.reader(io.StringIO(whole.replace("\0", "")))
    header = next(table, [])
    for cells in table:
        row = _row(header, cells)
        if row is None:
            dropped += bool(cells)
        else:
            rows.append(row)
    if dropped:
        line = "1 line" if dropped == 1 else f"{dropped} lines"
        notes.append(f"{path.name}: {line} half written or damaged, left out.")
    return rows


def _row(header: list[str], cells: list[str]) -> dict[str, float] | None:
    if len(cells) != len(header):
        return None
    try:
        row = {name: float(cell) for name, cell in zip(header, cells, strict=True) if cell}
    except ValueError:
        return None
    return row if math.isfinite(row.get("step", math.nan)) else None


def _read_npz(path: Path, notes: list[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        notes.append(f"{path.name} cannot be read ({one_line(error, 100)}), left out.")
        return {}


def _notes(run: Run) -> list[str]:
    notes = []
    if not run.finished:
        of = f" of {run.total_steps:,}" if run.total_steps else ""
        notes.append(
            f"The run is not finished: {run.steps:,}{of} steps are recorded. It may still be "
            "going, or was stopped."
        )
    for column in sorted({name for row in run.metrics for name in row}):
        bad = [row for row in run.metrics if not math.isfinite(row.get(column, 0.0))]
        if bad:
            rows = "1 row" if len(bad) == 1 else f"{len(bad)} rows"
            first = f"first at step {int(bad[0]['step']):,}"
            notes.append(f"{column} was not finite in {rows}, {first}.")
    if not run.metrics:
        notes.append(f"{results.METRICS} has no row yet, so there are no curves.")
    return notes
