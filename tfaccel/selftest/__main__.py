"""Trains all combinations on this machine's devices, and compares them with plain Keras.

python -m tfaccel.selftest --json=selftest.json
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfaccel import cli, devices, distribution, results
from tfaccel.errors import UserError, one_line
from tfaccel.lazy import tf
from tfaccel.log import logger
from tfaccel.selftest import cases, rows, table

USAGE = """Trains small models in many combinations of devices, precision, XLA, accumulation,
clipping, averaging and pruning, and compares each with plain Keras on one device.

    python -m tfaccel.selftest --json=selftest.json

Takes 2 to 3 minutes; --full runs every combination. On a machine without a GPU, replicas are
logical CPUs. Attach the JSON to a bug report. Exits 1 if a combination differs."""

_WORKER_SECONDS = 3600


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values = _flags()
    if not cli.parse(flag_values, argv, USAGE):
        return 0
    for path in (flag_values.json, flag_values.table):
        if path and not Path(path).absolute().parent.is_dir():
            raise UserError(f"received {path}, expected a file in a folder that exists.")
    # Workers first, as this process would take the GPUs.
    found = _run_workers(flag_values.full) if flag_values.workers else []
    found += _run_here(flag_values.full)
    print(table.text(found))
    hardware = devices.describe()
    if flag_values.json:
        results.write_measured(Path(flag_values.json), "selftest", hardware, found, {})
    if flag_values.table:
        page = table.markdown(found, hardware, results.versions())
        Path(flag_values.table).write_text(page)
    return 0 if all(row["passed"] for row in found) else 1


def _flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    texts = {
        "json": "File to write results, hardware and versions to.",
        "table": "Markdown file to write the table to.",
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
    wanted = [case for case in cases.chosen(full) if case.workers == 1]
    chosen = [case for case in wanted if not present or case.replicas <= present]
    if len(chosen) < len(wanted):
        logger.warning(
            "selftest: %d combinations left out, which need more replicas than the %d GPU(s) "
            "here", len(wanted) - len(chosen), present,
        )  # fmt: skip
    # First the one with the most devices: TensorFlow can split the CPU only once.
    _strategy(max(case.replicas for case in chosen), present)
    return [rows.run(case, _strategy(case.replicas, present)) for case in chosen]


def _run_workers(full: bool) -> list[dict]:
    count = max(cases.AXES["workers"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "tfaccel.launch", f"--workers={count}"]
        command += ["--module=tfaccel.selftest.worker", "--", f"--rows={path}"]
        command += ["--full"] if full else []
        logger.info("selftest: starting %d workers", count)
        status, last = _relayed(command)
        written = results.read_json(path)
        if status == 0 and written is not None:
            return written["rows"]
    error = f"exit status {status}: {one_line(last)}"
    return [rows.failed(case, error) for case in cases.chosen(full) if case.workers > 1]


def _relayed(command: list[str]) -> tuple[int, str]:
    """Runs the workers, and logs what the first finds; returns (exit status, last line)."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipe) as process:
        limit = threading.Timer(_WORKER_SECONDS, process.terminate)
        limit.start()
        last = "no output"
        try:
            for line in process.stdout:
                last = line.strip() or last
                if line.startswith("[0] selftest:"):
                    logger.info(last.removeprefix("[0] "))
            status = process.wait()
        finally:  # Ctrl-C
            limit.cancel()
            process.terminate()
    return status, last


@functools.cache
def _strategy(replicas: int, gpus: int):
    if replicas == 1:
        return distribution.build(strategy="none")
    if gpus:
        return distribution.build(strategy="mirrored", gpus=replicas)
    return distribution.build(strategy="mirrored", logical_cpus=replicas)


if __name__ == "__main__":
    sys.exit(cli.main(run))
