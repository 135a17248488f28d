"""One combination's row of the results."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from tfaccel.errors import one_line
from tfaccel.log import logger
from tfaccel.selftest import table
from tfaccel.selftest.cases import Case


def run(case: Case, strategy) -> dict[str, Any]:
    """Trains a combination; returns what came of it, failures included."""
    from tfaccel.selftest import trial

    start, level = time.monotonic(), logger.level
    logger.setLevel("WARNING")
    try:
        found = trial.difference(case, strategy)
        row = _row(case, found, trial.TOLERANCE[case.precision])
    except Exception as error:  # Whatever fails on somebody's machine is a result.
        row = failed(case, one_line(error, 300))
    finally:
        logger.setLevel(level)
    row["seconds"] = round(time.monotonic() - start, 1)
    logger.info("selftest: %s: %s", case, table.verdict(row))
    return row


def failed(case: Case, error: str) -> dict[str, Any]:
    """Returns the row of a combination that could not be trained."""
    return _row(case, error=error)


def _row(case, difference=None, tolerance=None, error=None):
    passed = error is None and difference <= tolerance
    return {
        **dataclasses.asdict(case),
        "difference": difference,
        "tolerance": tolerance,
        "passed": passed,
        "error": error,
    }
