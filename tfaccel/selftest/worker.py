"""One of the workers that `python -m tfaccel.selftest` starts.

All of them train the combinations of several workers; the chief writes the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfaccel import cli, devices, distribution, results
from tfaccel.lazy import tf
from tfaccel.selftest import cases, rows


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values = flags.FlagValues()
    flags.DEFINE_string("rows", None, "File for the rows.", flag_values=flag_values)
    flags.DEFINE_bool("full", False, "Run every combination.", flag_values=flag_values)
    if not cli.parse(flag_values, argv, __doc__):
        return 0
    cli.start_tensorflow()
    devices.configure()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    strategy = distribution.build(strategy="multiworker")
    chosen = [case for case in cases.chosen(flag_values.full) if case.workers > 1]
    found = [rows.run(case, strategy) for case in chosen]
    if flag_values.rows and distribution.worker(strategy)[0] == 0:
        results.write_json(Path(flag_values.rows), {"rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(cli.main(run))
