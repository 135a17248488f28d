"""Trains all combinations on this machine's devices, and compares them with plain Keras.

python -m tfaccel.selftest --json=selftest.json
"""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfaccel import cli, devices, distribution, results
from tfaccel.errors import UserError, one_line
from tfaccel.lazy import tf
from tfaccel.log import logger
from tfaccel.selftest import cases as cases_lib
from tfaccel.selftest import table
from tfaccel.selftest.cases import Case

USAGE = """Trains small models in many combinations of devices, precision, XLA, accumulation,
clipping and averaging, and compares each with plain Keras on one device.

    python -m tfaccel.selftest --json=selftest.json

Takes 2 to 3 minutes; --full runs every combination. On a machine without a GPU, replicas are
logical CPUs. Attach the JSON to a bug report. Exits 1 if a combination differs."""

_WORKER_SECONDS = 3600


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values = _flags()
    if not cli.parse(flag_values, argv, USAGE):
        return 0
    if flag_values.as_worker:
        return _run_as_worker(Path(flag_values.as_worker), flag_values.full)
    for path in (flag_values.json, flag_values.table):
        if path and not Path(path).absolute().parent.is_dir():
            raise UserError(f"received {path}, expected a file in a folder that exists.")
    rows = []
    if flag_values.workers:
        # First, as this process would take the GPUs.
        rows += _run_workers(flag_values.full)
    rows += _run_here(flag_values.full)
    print(table.text(rows))
    hardware = devices.describe()
    if flag_values.json:
        results.write_measured(Path(flag_values.json), "selftest", hardware, rows, {})
    if flag_values.table:
        page = table.markdown(rows, hardware, results.versions())
        Path(flag_values.table).write_text(page)
    return 0 if all(row["passed"] for row in rows) else 1


def _flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    texts = {
        "json": "File to write results, hardware and versions to.",
        "table": "Markdown file to write the table to.",
        "as_worker": "Used by this command itself: file for the results of several workers.",
    }
    for name, text in texts.items():
        flags.DEFINE_string(name, None, text, flag_values=flag_values)
    flags.DEFINE_bool("full", False, "Run every combination.", flag_values=flag_values)
    flags.DEFINE_bool("workers", True, "Include two workers.", flag_values=flag_values)
    return flag_values


def _run_here(full: bool) -> list[dict]:
    cli.start_tensorflow()
    devices.configure(memory_growth=bool(tf.config.list_physical_devices("GPU")))
    tf.config.experimental.enable_tensor_float_32_execution(False)
    present = len(tf.config.get_visible_devices("GPU"))
    chosen = [
        case
        for case in _chosen(full)
        if case.workers == 1 and (not present or case.replicas <= present)
    ]
    # First the one with the most devices: TensorFlow can split the CPU only once.
    _strategy(max(case.replicas for case in chosen), present)
    return [_row(case, _strategy(case.replicas, present)) for case in _in_order(chosen)]


def _run_as_worker(path: Path, full: bool) -> int:
    """One of two workers: all run the cases, the chief writes the rows."""
    cli.start_tensorflow()
    devices.configure()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    strategy = distribution.build(strategy="multiworker")
    chosen = [case for case in _chosen(full) if case.workers > 1]
    rows = [_row(case, strategy) for case in _in_order(chosen)]
    if distribution.worker(strategy)[0] == 0:
        results.write_json(path, {"rows": rows})
    return 0


def _run_workers(full: bool) -> list[dict]:
    count = max(cases_lib.AXES["workers"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "tfaccel.launch", f"--workers={count}"]
        command += ["--module=tfaccel.selftest", "--", f"--as_worker={path}"]
        command += ["--full"] if full else []
        logger.info("selftest: starting %d workers", count)
        status, last = _relayed(command)
        written = results.read_json(path)
        if status == 0 and written is not None:
            return written["rows"]
    error = f"exit status {status}: {one_line(last)}"
    chosen = [case for case in _chosen(full) if case.workers > 1]
    return [_result(case, error=error) for case in chosen]


def _relayed(command: list[str]) -> tuple[int, str]:
    """Runs the workers, and logs what the first finds; returns (exit status, last line)."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipe) as process:
        limit = threading.Timer(_WORKER_SECONDS, process.terminate)
        limit.start()
        last = "no output"
        for line in process.stdout:
            last = line.strip() or last
            if line.startswith("[0] selftest:"):
                logger.info(last.removeprefix("[0] "))
        status = process.wait()
        limit.cancel()
    return status, last


def _chosen(full: bool) -> list[Case]:
    everything = cases_lib.everything()
    return everything if full else cases_lib.pairwise(everything)


def _in_order(cases: list[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: (case.workers, case.replicas))


@functools.cache
def _strategy(replicas: int, gpus: int):
    if replicas == 1:
        return distribution.build(strategy="none")
    if gpus:
        return distribution.build(strategy="mirrored", gpus=replicas)
    return distribution.build(strategy="mirrored", logical_cpus=replicas)


def _row(case: Case, strategy) -> dict:
    from tfaccel.selftest import trial

    start, level = time.monotonic(), logger.level
    logger.setLevel("WARNING")
    try:
        found = trial.difference(case, strategy)
        row = _result(case, found, trial.TOLERANCE[case.precision])
    except Exception as error:  # Whatever fails on somebody's machine is a result.
        row = _result(case, error=one_line(error, 300))
    finally:
        logger.setLevel(level)
    row["seconds"] = round(time.monotonic() - start, 1)
    logger.info("selftest: %s: %s", case, table.verdict(row))
    return row


def _result(case: Case, difference=None, tolerance=None, error=None) -> dict:
    passed = error is None and difference <= tolerance
    return {
        **dataclasses.asdict(case),
        "difference": difference,
        "tolerance": tolerance,
        "passed": passed,
        "error": error,
    }


if __name__ == "__main__":
    sys.exit(cli.main(run))
