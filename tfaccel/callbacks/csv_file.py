"""A CSV file of numbers that survives restarts and being killed."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any


class CsvFile:
    """Rows by step; new columns may come at any time.

    Args:
        path: The file; its folder is made with the first row.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._columns = []
        self._end = None  # of the file, where rows are appended; open while they come

    def drop_after(self, step: int) -> set[int]:
        """Drops the rows after a step, and half a row; returns the steps of the others."""
        rows = self._read()
        kept = [row for row in rows if int(row["step"]) <= step]
        self._columns = list(rows[0]) if rows else []
        if rows:
            self._rewrite(kept)
        return {int(row["step"]) for row in kept}

    def append(self, row: dict[str, Any]) -> None:
        """Writes a row with its "step"; floats to seven digits, None as an empty field."""
        new = [name for name in row if name not in self._columns]
        if new:
            rows = self._read()
            self._columns += new
            self._rewrite(rows)
        line = io.StringIO()
        csv.writer(line).writerow([_text(row.get(name)) for name in self._columns])
        if self._end is None:
            self._end = self.path.open("ab", buffering=0)
        self._end.write(line.getvalue().encode())

    def _read(self):
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        # A run that was killed may have left half a row.
        return [row for row in rows if str(row.get("step", "")).isdigit()]

    def _rewrite(self, rows):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.partial")
        with partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self.path)
        if self._end is not None:
            self._end.close()
            self._end = None


def _text(value):
    return f"{value:.7g}" if isinstance(value, float) else value
