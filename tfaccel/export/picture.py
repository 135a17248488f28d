"""Accuracy against size, as an SVG that any browser shows."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 60, 60
_RAW, _GZIP, _INK, _GRID = "#1f6f8b", "#e07a3f", "#222", "#ddd"


def draw(artefacts: dict[str, dict[str, Any]]) -> str:
    """Returns the picture: a filled dot at each file's size, a ring at its gzip's.

    Args:
        artefacts: {name: {"accuracy", "bytes", "gzip_bytes"}}; the name is the
            label.
    """
    sizes = [entry[key] for entry in artefacts.values() for key in ("bytes", "gzip_bytes")]
    accuracies = [100 * entry["accuracy"] for entry in artefacts.values()]
    low, high = math.log2(min(sizes)) - 0.3, math.log2(max(sizes)) + 0.7
    # At least two points high, so that rounding does not look like a cliff.
    middle = (min(accuracies) + max(accuracies)) / 2
    reach = max(1.0, 0.7 * (max(accuracies) - min(accuracies)))
    bottom, top = middle - reach, middle + reach

    def x(size):
        return _LEFT + (math.log2(size) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(percent):
        return (
            _HEIGHT - _BOTTOM - (percent - bottom) / (top - bottom) * (_HEIGHT - _TOP - _BOTTOM)
        )

    parts = [*_axes(x, y, (low, high), (bottom, top)), *_legend()]
    labels: list[tuple[float, float]] = []
    for name, entry in sorted(artefacts.items(), key=lambda item: item[1]["bytes"]):
        height = y(100 * entry["accuracy"])
        raw, packed = x(entry["bytes"]), x(entry["gzip_bytes"])
        parts.append(_line(packed, height, raw, height, _RAW, 1.5))
        parts.append(_circle(packed, height, "#fff", _GZIP))
        parts.append(_circle(raw, height, _RAW, _RAW))
        place = _free(raw, height, labels)
        parts.append(_line(raw, height, raw, place + 4, "#999", 0.7))
        text = f"{name}, {entry['bytes'] / 1024:,.0f} KiB, {100 * entry['accuracy']:.2f} %"
        parts.append(_text(raw + 4, place, text, "end" if raw > _WIDTH * 0.62 else "start"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _free(x: float, y: float, taken: list[tuple[float, float]]) -> float:
    """The height of a label above a dot, or above the labels that are there already."""
    place = y - 12
    while any(abs(place - other) < 15 and abs(x - at) < 330 for at, other in taken):
        place -= 15
    taken.append((x, place))
    return place


def _axes(x, y, sizes, accuracies):
    for power in range(math.ceil(sizes[0]), math.floor(sizes[1]) + 1):
        at = x(2**power)
        yield _line(at, _TOP, at, _HEIGHT - _BOTTOM, _GRID, 1)
        kib = 2 ** (power - 10)
        label = f"{kib / 1024:g} MiB" if kib >= 1024 else f"{kib:g} KiB"
        yield _text(at, _HEIGHT - _BOTTOM + 18, label, "middle")
    step = 10 ** math.floor(math.log10(accuracies[1] - accuracies[0])) / 2
    for i in range(math.ceil(accuracies[0] / step), math.floor(accuracies[1] / step) + 1):
        if i * step <= 100:
            yield _line(_LEFT, y(i * step), _WIDTH - _RIGHT, y(i * step), _GRID, 1)
            yield _text(_LEFT - 8, y(i * step) + 4, f"{i * step:g} %", "end")
    yield _text(_WIDTH / 2, _HEIGHT - 16, "size (each line doubles it)", "middle")
    yield _text(_LEFT, 26, "Accuracy against size", "start", size=16)


def _legend():
    yield _circle(_WIDTH - 250, 22, _RAW, _RAW)
    yield _text(_WIDTH - 240, 26, "as it is", "start")
    yield _circle(_WIDTH - 160, 22, "#fff", _GZIP)
    yield _text(_WIDTH - 150, 26, "after gzip -9", "start")


def _line(x1, y1, x2, y2, colour, width):
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _circle(x, y, fill, stroke):
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{stroke}" '
        'stroke-width="2"/>'
    )


def _text(x, y, text, anchor, size=12):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{_INK}">{escape(text)}</text>'
    )
