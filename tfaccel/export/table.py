"""An export's report as a plain table."""

from __future__ import annotations

from typing import Any

_PRUNED = 0.05


def draw(report: dict[str, Any]) -> str:
    """Returns the table, with what it does not show said below it."""
    rows = [_row(name, entry) for name, entry in report["artefacts"].items()]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([*(line.rstrip() for line in lines), "", *_notes(report)])


def ratios(report: dict[str, Any], beside: dict[str, Any]) -> str:
    """Returns how sizes and accuracies of two exports compare, a line a format."""
    lines = []
    for name, ours in report["artefacts"].items():
        if theirs := beside["artefacts"].get(name):
            points = 100 * (ours["accuracy"] - theirs["accuracy"])
            lines.append(
                f"{name}: {ours['bytes'] / theirs['bytes']:.2f} of the bytes, "
                f"{ours['gzip_bytes'] / theirs['gzip_bytes']:.2f} after gzip, "
                f"{points:+.2f} points of accuracy"
            )
    return "\n".join(lines)


def _row(name: str, entry: dict[str, Any]) -> dict[str, str]:
    row = {
        "format": name,
        "file": entry["file"],
        "KiB": f"{entry['bytes'] / 1024:,.1f}",
        "gzip KiB": f"{entry['gzip_bytes'] / 1024:,.1f}",
        "accuracy": f"{100 * entry['accuracy']:.2f} %",
        "differs by": f"{entry['largest_difference']:.1e}",
        "zeros": f"{100 * entry['sparsity']['share']:.1f} %",
    }
    for timing in entry["latency"]:
        column = f"ms b{timing['batch']} t{timing['threads']}"
        row[column] = f"{timing['median_ms']:.2f} ({timing['p95_ms']:.2f})"
    return row


def _notes(report: dict[str, Any]) -> list[str]:
    artefacts, right = report["artefacts"], "labels" if report["labelled"] else "predictions"
    notes = [
        f"accuracy: on {report['images']} images; the float32 model itself has "
        f"{100 * report['accuracy']:.2f} % ({right} of the "
        f"{'data' if report['labelled'] else 'float32 model'}).",
        f"BatchNormalization: {report['batch_norm']['folded']} folded, "
        f"{report['batch_norm']['kept']} kept.",
    ]
    if any(entry["latency"] for entry in artefacts.values()):
        notes.append("ms: median (95th percentile) of a call; b = batch, t = CPU threads.")
    if faster := _speed_up(artefacts):
        notes.append(faster)
    if kept := artefacts.get("litert_int8", {}).get("float_operations"):
        notes.append(f"litert_int8 computes in float32 still: {', '.join(kept)}.")
    share = max(entry["sparsity"]["share"] for entry in artefacts.values())
    if share >= _PRUNED:
        notes.append(
            f"zeros: {100 * share:.1f} % of the weights. They make files smaller after gzip; "
            "none of these runtimes skips them, so none is faster for them."
        )
    return notes


def _speed_up(artefacts: dict[str, dict[str, Any]]) -> str:
    if not {"litert", "litert_int8"} <= artefacts.keys():
        return ""
    pairs = zip(
        artefacts["litert"]["latency"], artefacts["litert_int8"]["latency"], strict=True
    )
    ratios = []
    for whole, small in pairs:
        ratio = whole["median_ms"] / small["median_ms"]
        ratios.append(f"{ratio:.2f} x (b{whole['batch']} t{whole['threads']})")
    return f"litert_int8 against litert: {', '.join(ratios)}." if ratios else ""
