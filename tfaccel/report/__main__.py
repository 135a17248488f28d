"""Builds report.html from a run's folder, or one page that compares several runs.

python -m tfaccel.report runs/quickstart
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfaccel import cli, report
from tfaccel.errors import UserError

USAGE = """Builds a page that shows what a run did, or compares several runs.

    python -m tfaccel.report runs/quickstart
    python -m tfaccel.report runs/first runs/second --out=comparison.html

The run may be finished, stopped or still going. One run's page is written to its own
folder as report.html, several runs' to comparison.html here, if --out says nothing else."""


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values, folders = flags.FlagValues(), []
    flag_values.set_gnu_getopt(True)  # flags may stand behind the folders
    flags.DEFINE_string("out", None, "The page to write.", flag_values=flag_values)
    if not cli.parse(flag_values, argv, USAGE, words=folders):
        return 0
    if not folders:
        raise UserError(
            "received no run, expected one folder or several: "
            "python -m tfaccel.report runs/quickstart"
        )
    if flag_values.out == "":
        raise UserError("received --out=, expected a file: name one, or leave it out.")
    runs = [Path(folder) for folder in folders]
    print(report.build(runs, Path(flag_values.out) if flag_values.out else None))
    return 0


if __name__ == "__main__":
    sys.exit(cli.main(run))
