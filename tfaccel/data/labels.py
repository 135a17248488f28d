"""Labels as people have them: columns, one-hot rows, names; as whole numbers."""

from __future__ import annotations

import numpy as np

from tfaccel.errors import UserError, did_you_mean


def whole_numbers(
    labels, count: int, class_names: tuple[str, ...] = (), name: str = "labels"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns labels as whole numbers, with a name for each class.

    Args:
        labels: Whole numbers [n] or [n, 1], one-hot rows [n, classes] of any
            dtype, or texts [n] or [n, 1] that are in `class_names`.
        count: How many images there are.
        class_names: One name a class; "0", "1", ... if empty.
        name: What to call the dataset in messages.

    Returns:
        (int32 [n], one name a class).

    Raises:
        UserError: If shape, dtype or values do not fit.

    Example:
        >>> whole_numbers(["cat", "dog", "cat"], 3, ("cat", "dog"))[0].tolist()
        [0, 1, 0]
    """
    labels, class_names = np.asarray(labels), tuple(map(str, class_names))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and len(labels) == count and labels.dtype.kind in "biuf":
        class_names = class_names or tuple(map(str, range(labels.shape[1])))
        labels = _from_one_hot(labels, name)
    if labels.shape == (count,) and labels.dtype.kind in "USO" and count:
        labels = _from_texts(labels, class_names, name)
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise UserError(
            f"{name}: received labels of dtype {labels.dtype} and shape {labels.shape} "
            f"for {count} images, expected whole numbers of shape ({count},)."
        )
    if count == 0:
        raise UserError(f"{name}: received no images, expected at least one.")
    low, high = int(labels.min()), int(labels.max())
    class_names = class_names or tuple(map(str, range(high + 1)))
    if low < 0 or high >= len(class_names):
        raise UserError(
            f"{name}: received labels from {low} to {high}, expected 0 to "
            f"{len(class_names) - 1} ({len(class_names)} classes)."
        )
    return labels.astype(np.int32), class_names


def _from_one_hot(rows: np.ndarray, name: str) -> np.ndarray:
    good = (rows == 1).sum(axis=1) == 1
    good &= (rows != 0).sum(axis=1) == 1
    if not good.all():
        example = int(np.argmin(good))
        raise UserError(
            f"{name}: received labels of shape {rows.shape} whose row {example} is "
            f"{rows[example].tolist()[:10]}, expected one-hot rows (a single 1 each), or "
            f"whole numbers of shape ({len(rows)},)."
        )
    return rows.argmax(axis=1)


def _from_texts(texts: np.ndarray, class_names: tuple[str, ...], name: str) -> np.ndarray:
    texts = [t.decode() if isinstance(t, bytes) else str(t) for t in texts.tolist()]
    if not class_names:
        known = ", ".join(sorted(set(texts))[:5])
        raise UserError(
            f"{name}: received labels that are texts ({known}, ...) without a list of the "
            "classes, which says what number each is: give class_names as well (an array "
            "of that name in an .npz file)."
        )
    numbers = {class_name: number for number, class_name in enumerate(class_names)}
    unknown = next((text for text in texts if text not in numbers), None)
    if unknown is not None:
        raise UserError(
            f"{name}: received the label {unknown!r}, which is none of the "
            f"{len(class_names)} classes. {did_you_mean(unknown, class_names)}".strip()
        )
    return np.array([numbers[text] for text in texts])
