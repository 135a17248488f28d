"""How long `import tfaccel`, --help and a bad config take, beside a bare Python.

    python benchmarks/startup.py --json=startup.json

Each command runs in turn with the others, several times; medians and the ratios
to a bare Python are printed.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tfaccel import host, results

COMMANDS = {
    "python": ["-c", "pass"],
    "import tfaccel": ["-c", "import tfaccel"],
    "train --help": ["-m", "tfaccel.train", "--help"],
    "train --print_config": ["-m", "tfaccel.train", "--print_config"],
    "bad field": ["-m", "tfaccel.train", "--config.optimizer.learning_rat=1"],
    "unknown dataset": ["-m", "tfaccel.train", "--config.data.name=cifr10"],
}


def seconds(arguments: list[str]) -> float:
    """Returns the wall time of a Python process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    times = {name: [] for name in COMMANDS}
    for _ in range(options.runs):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: value / medians["python"] for name, value in medians.items()}
    for name, value in medians.items():
        print(f"{name:<22} {value:.3f} s  {ratios[name]:5.1f} x a bare Python")
    if options.json:
        name = "startup"
        results.write_measured(options.json, name, host.describe(), medians, ratios)


if __name__ == "__main__":
    main()
