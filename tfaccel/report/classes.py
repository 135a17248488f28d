"""What the test images show: confusion, accuracy by class, the most confident mistakes."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

# Up to here a table with a number a cell can be read; beyond it is a picture.
_TABLE_CLASSES = 12
_SHOWN_CLASSES = 24
_SHOWN_PAIRS = 12
_THUMBNAIL = 96


def describe(predictions: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns what the page shows of predictions.npz; an empty dictionary without it."""
    if not {"labels", "predictions", "confusion", "class_names"} <= set(predictions):
        return {}
    names = [str(name) for name in predictions["class_names"]]
    confusion = np.asarray(predictions["confusion"], np.int64)
    return {
        "count": int(confusion.sum()),
        "names": names,
        "table": _table(confusion) if len(names) <= _TABLE_CLASSES else None,
        "picture": None if len(names) <= _TABLE_CLASSES else _picture(confusion),
        "pairs": _pairs(confusion, names),
        "classes": _classes(confusion, names),
        "mistakes": _mistakes(predictions, names),
    }


def _shares(confusion: np.ndarray) -> np.ndarray:
    """Rows sum to 1; a class without images stays 0."""
    return confusion / np.maximum(1, confusion.sum(axis=1, keepdims=True))


def _table(confusion: np.ndarray) -> list[list[dict[str, Any]]]:
    shares = _shares(confusion)
    return [
        [
            {"count": int(count), "share": round(float(share), 4), "right": row == column}
            for column, (count, share) in enumerate(zip(counts, row_shares, strict=True))
        ]
        for row, (counts, row_shares) in enumerate(zip(confusion, shares, strict=True))
    ]


def _picture(confusion: np.ndarray) -> str:
    """One pixel a cell: blue where right, orange where wrong, clear where nothing."""
    shares = _shares(confusion)
    right = np.eye(len(shares), dtype=bool)
    pixels = np.empty((*shares.shape, 4), np.uint8)
    pixels[..., :3] = np.where(right[..., None], (0, 114, 178), (213, 94, 0))
    # The root lets a handful of mistakes be seen.
    pixels[..., 3] = np.round(255 * np.sqrt(shares))
    pixels[shares == 0] = 0
    return _data_uri(Image.fromarray(pixels, "RGBA"), "PNG")


def _pairs(confusion: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    """The confusions that happen most."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_SHOWN_PAIRS]
    cells = [np.unravel_index(place, wrong.shape) for place in order]
    return [
        {"label": names[row], "prediction": names[column], "count": int(wrong[row, column])}
        for row, column in cells
        if wrong[row, column]
    ]


def _classes(confusion: np.ndarray, names: list[str]) -> dict[str, Any]:
    """Accuracy by class: all in their order, or the worst if there are many."""
    counts = confusion.sum(axis=1)
    accuracy = np.diagonal(confusion) / np.maximum(1, counts)
    order = [index for index in range(len(names)) if counts[index]]
    without = len(names) - len(order)
    many = len(order) > _SHOWN_CLASSES
    if many:
        order = sorted(order, key=lambda index: accuracy[index])[:_SHOWN_CLASSES]
    return {
        "many": many,
        "without": without,
        "rows": [
            {"name": names[i], "count": int(counts[i]), "accuracy": float(accuracy[i])}
            for i in order
        ],
    }


def _mistakes(predictions: dict[str, np.ndarray], names: list[str]) -> list[dict[str, Any]]:
    if not {"mistakes", "mistake_images"} <= set(predictions):
        return []
    places = predictions["mistakes"]
    return [
        {
            "label": names[int(predictions["labels"][place])],
            "prediction": names[int(predictions["predictions"][place])],
            "probability": float(predictions["probabilities"][place]),
            "place": int(place),
            "image": _thumbnail(image),
        }
        for place, image in zip(places, predictions["mistake_images"], strict=True)
    ]


def _thumbnail(image: np.ndarray) -> str:
    """A data URI: small images pixel by pixel, large ones made smaller."""
    image = np.asarray(image, np.uint8)
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image[..., :3])
    if max(picture.size) <= _THUMBNAIL:
        return _data_uri(picture, "PNG")
    picture.thumbnail((2 * _THUMBNAIL, 2 * _THUMBNAIL))
    return _data_uri(picture, "JPEG")


def _data_uri(picture: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind, optimize=True)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{encoded}"
