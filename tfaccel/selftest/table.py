"""The results of a self-test, for a terminal and for Markdown."""

from __future__ import annotations

from typing import Any

from tfaccel.selftest.cases import SWITCHES

_COLUMNS = (
    *("devices", "precision", "accumulation", "XLA", "clip", "EMA", "pruning"),
    *("difference", ""),
)


def verdict(row: dict[str, Any]) -> str:
    """Returns what came of one combination, in a few words."""
    if row["error"]:
        return f"FAILED: {row['error']}"
    words = "same" if row["passed"] else "DIFFERS"
    return f"{words} ({row['difference']:.1e}, allowed {row['tolerance']:.0e})"


def text(rows: list[dict[str, Any]]) -> str:
    """Returns the table in aligned columns, with a last line that sums up."""
    cells = [_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS) - 1)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True))
        for line in cells
    ]
    return "\n".join([*(line.rstrip() for line in lines), "", _summary(rows)])


def markdown(
    rows: list[dict[str, Any]], hardware: dict[str, Any], versions: dict[str, str]
) -> str:
    """Returns a page with the table, the hardware and the versions."""
    lines = ["| " + " | ".join(name or "result" for name in _COLUMNS) + " |"]
    lines.append("|" + "---|" * len(_COLUMNS))
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    facts = [f"{name} {value}" for name, value in versions.items()]
    return "\n".join(
        [
            "# Gauntlet",
            "",
            "Ten updates from one seed, against plain Keras on one device in the same "
            "precision. The difference is the largest of any weight, optimizer slot, average "
            "or metric (loss, accuracy, precision, AUC, one of the user's own); zeros must "
            "be the very same.",
            "",
            f"Hardware: {_hardware(hardware)}. {', '.join(facts)}.",
            "",
            *lines,
            "",
            _summary(rows),
            "",
        ]
    )


def _cells(row: dict[str, Any]) -> list[str]:
    workers, replicas = row["workers"], row["replicas"]
    devices = f"{workers} workers" if workers > 1 else f"{replicas} replica(s)"
    switches = ["on" if row[name] else "off" for name in SWITCHES]
    difference = "" if row["difference"] is None else f"{row['difference']:.1e}"
    outcome = "ok" if row["passed"] else row["error"] or f"more than {row['tolerance']:.0e}"
    settings = [row["precision"], str(row["accumulation"]), *switches]
    return [devices, *settings, difference, outcome]


def _summary(rows: list[dict[str, Any]]) -> str:
    passed = sum(row["passed"] for row in rows)
    return f"{passed} of {len(rows)} combinations train the same model as one device."


def _hardware(hardware: dict[str, Any]) -> str:
    gpus = hardware.get("gpus") or []
    others = [f"{name} {value}" for name, value in hardware.items() if name != "gpus"]
    return ", ".join([*gpus, *others])
