"""How long a report takes to build, and how large it is, for runs of several lengths.

    python benchmarks/report.py --json=report.json

The runs are written, not trained: their files hold what docs/results.md says, with random
numbers. A process of its own builds each page, as `python -m tfaccel.report` does; the
times are those of the whole process, with Python's start and imports, medians of several;
on a busy machine its CPU time says more than its wall time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tfaccel import host, results

ROOT = Path(__file__).parents[1]
RUNS = {
    "CIFAR-10, 200 epochs": {"images": 10_000, "size": 32},
    "CIFAR-10, 200 epochs, a row a step": {"images": 10_000, "size": 32, "log_every": 1},
    "1,000 classes, 200 epochs, 224 pixels": {"classes": 1000, "images": 50_000, "size": 224},
}
LENGTH = {"epochs": 200, "steps_per_epoch": 391, "log_every": 50}


def seconds(folders: list[Path], out: Path) -> tuple[float, float]:
    """Returns the wall time and the CPU time of `python -m tfaccel.report`."""
    command = [sys.executable, "-m", "tfaccel.report", *map(str, folders), f"--out={out}"]
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
    wall, after = time.perf_counter() - start, os.times()
    user = after.children_user - before.children_user
    return wall, user + after.children_system - before.children_system


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    import run_folders

    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folders = {
            name: [run_folders.write(Path(temporary) / str(place), **{**LENGTH, **run})]
            for place, (name, run) in enumerate(RUNS.items())
        }
        folders["all of these compared"] = [folder for (folder,) in folders.values()]
        for name, runs in folders.items():
            out = Path(temporary) / "page.html"
            walls, cpus = zip(*(seconds(runs, out) for _ in range(options.runs)), strict=True)
            wall, cpu, size = (
                statistics.median(walls),
                statistics.median(cpus),
                out.stat().st_size,
            )
            found[name] = {"seconds": wall, "cpu_seconds": cpu, "bytes": size}
            print(f"{name:<40} {wall:6.2f} s  {cpu:6.2f} s of CPU  {size / 1e6:5.2f} MB")
    if options.json:
        name = "report"
        results.write_measured(options.json, name, host.describe(), found, {})


if __name__ == "__main__":
    main()
