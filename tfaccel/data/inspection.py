"""Looks at data before anybody trains on them: sizes, classes, faults, speed, pictures."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tfaccel.data import decode
from tfaccel.data.files import FileSource
from tfaccel.data.image_index import UNREADABLE
from tfaccel.data.pipeline import TrainingData
from tfaccel.data.source import ArraySource, Source
from tfaccel.lazy import tf

_LISTED = 5
_TILE = 112


def sizes(source: Source) -> str:
    """Returns the sizes of a source's images, in a line."""
    if not isinstance(source, FileSource):
        return f"sizes: {_times(source.image_shape)} as fetched"
    files = source.files
    good = source.rows[files.kinds[source.rows] != UNREADABLE]
    pairs = np.stack([files.heights[good], files.widths[good]], axis=1)
    pairs = pairs[np.argsort(pairs.prod(axis=1), kind="stable")]
    low, middle, high = (_times(pairs[i]) for i in (0, len(pairs) // 2, -1))
    found = f"{low} to {high}, half of them up to {middle}" if low != high else low
    return f"sizes: {found} (height x width); {_times(source.image_shape)} as fetched"


def classes(source: Source) -> str:
    """Returns how many examples each class has, in a line."""
    counts = source.class_counts()
    if counts is None:
        return f"classes: {source.num_classes}; not counted, as labels lie in the files"
    ranked = sorted(zip(counts.tolist(), source.class_names, strict=True), reverse=True)
    listed = [f"{name} {count:,}" for count, name in ranked]
    if len(listed) > 4 * _LISTED:
        listed = [*listed[:_LISTED], "...", *listed[-_LISTED:]]
    return f"classes: {source.num_classes}: {', '.join(listed)}"


def duplicates(splits: dict[str, Source]) -> list[str]:
    """Returns lines on images that are there more than once, in one split or in several.

    Files are compared by their content, images in memory by their pixels.
    """
    places = collections.defaultdict(list)
    for split, source in splits.items():
        for digest, title, label in _fingerprints(source):
            places[digest].append((split, title, label))
    groups = [group for group in places.values() if len(group) > 1]
    if not groups:
        return ["duplicates: none"]
    lines = [f"duplicates: {sum(len(g) - 1 for g in groups):,}"]
    kinds = {
        "under two labels": lambda group: len({label for *_, label in group}) > 1,
        "in two splits": lambda group: len({split for split, *_ in group}) > 1,
    }
    for words, fits in kinds.items():
        if count := sum(map(fits, groups)):
            lines.append(f"  {count:,} of them {words}")
    # The worst first.
    groups.sort(key=lambda group: [not fits(group) for fits in kinds.values()])
    return lines + [f"  {' = '.join(title for _, title, _ in g[:3])}" for g in groups[:_LISTED]]


def unreadable(splits: dict[str, Source]) -> list[str]:
    """Returns lines on files that cannot be decoded; decodes all of them, whole."""
    sources = [source for source in splits.values() if isinstance(source, FileSource)]
    if not sources:
        return []
    bad = [(source, row) for source in sources for row in _undecodable(source)]
    lines = [f"unreadable: {len(bad):,} of {sum(map(len, sources)):,} files"]
    shown = bad[: 4 * _LISTED]
    return lines + [f"  {source.title(row)} ({source.reason(row)})" for source, row in shown]


def speeds(training: TrainingData, seconds: float) -> Iterator[tuple[str, float]]:
    """Yields (stage, images a second) of the pipeline up to each of its stages."""
    source, batch = training.source, training.global_batch_size
    if isinstance(source, FileSource):
        yield "read", _speed(_bytes_of(source), 1, seconds)
    plain = dataclasses.replace(training, augment=None, mixing=None, normalize=None)
    first = "fetch and batch" if isinstance(source, ArraySource) else "+ decode, cut and batch"
    yield first, _speed(plain.dataset(), batch, seconds)
    augmented = dataclasses.replace(plain, augment=training.augment)
    yield "+ augment", _speed(augmented.dataset(), batch, seconds)
    yield "+ mix and normalise", _speed(training.dataset(), batch, seconds)


def grid(training: TrainingData, count: int):
    """Returns a picture of the first training examples as they are augmented.

    Args:
        training: The training data.
        count: How many examples.

    Returns:
        A `PIL.Image.Image`, each example with its label, or the two largest shares of
        a mixed one, below it.
    """
    from PIL import Image, ImageDraw

    shown = dataclasses.replace(training, normalize=None, global_batch_size=count)
    images, labels = next(shown.dataset().as_numpy_iterator())
    tiles = [_tile(Image, image) for image in images]
    columns = int(np.ceil(np.sqrt(count)))
    width, height = max(t.width for t in tiles) + 6, max(t.height for t in tiles) + 22
    size = columns * width, -(-count // columns) * height
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    for place, (tile, label) in enumerate(zip(tiles, labels, strict=True)):
        left, top = place % columns * width + 3, place // columns * height + 3
        picture.paste(tile, (left, top))
        text = label_text(label, training.source.class_names)
        # About six pixels a letter in Pillow's own font.
        draw.text((left, top + tile.height + 2), text[: tile.width // 6], fill="black")
    return picture


def label_text(label, names: tuple[str, ...]) -> str:
    """Returns a label in words: a class, or the two largest shares of a soft one."""
    if np.ndim(label) == 0:
        return names[int(label)]
    first, second = np.argsort(label)[::-1][:2]
    if label[second] <= (1 - label[first]) / max(1, len(label) - 1) * 1.01:
        return names[first]  # The rest is spread over all: smoothed, not mixed.
    return f"{label[first]:.0%} {names[first]}, {label[second]:.0%} {names[second]}"


def _tile(library, image: np.ndarray):
    tile = library.fromarray(image[..., 0] if image.shape[-1] == 1 else image[..., :3])
    times = _TILE / max(tile.size)
    # Small images keep their pixels, to be counted if need be.
    times, filter = (round(times), 0) if times > 1.5 else (min(1.0, 2 * times), 1)
    new = [max(1, round(side * times)) for side in tile.size]
    return tile.convert("RGB").resize(new, filter)


def _fingerprints(source: Source) -> Iterator[tuple[bytes, str, int]]:
    if isinstance(source, ArraySource):
        for row in source.index:
            digest = hashlib.sha256(source.images[row].tobytes()).digest()
            yield digest, f"{source.name} {row}", int(source.labels[row])
    if isinstance(source, FileSource):
        for row in source.rows:
            path, label = source.files.path(row), int(source.files.labels[row])
            yield _file_digest(path), str(path), label


def _file_digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return os.fsencode(path)  # Gone: told among the unreadable.


def _undecodable(source: FileSource) -> list[int]:
    kinds = tuple(np.unique(source.files.kinds[source.rows]).tolist())

    def decoded(detail):
        image = decode.whole(detail["path"], detail["kind"], kinds)
        return tf.size(image) > 0

    def readable(detail):
        tried = tf.data.Dataset.from_tensors(detail).map(decoded).ignore_errors()
        tried = tried.concatenate(tf.data.Dataset.from_tensors(False)).take(1)
        return tried.get_single_element()

    details = _details(source, source.rows)
    good = details.map(readable, num_parallel_calls=tf.data.AUTOTUNE).batch(256)
    return source.rows[~np.concatenate(list(good.as_numpy_iterator()))].tolist()


def _bytes_of(source: FileSource):
    details = _details(source, np.random.default_rng(0).permutation(source.rows)).repeat()
    return details.map(
        lambda detail: tf.io.read_file(detail["path"]), num_parallel_calls=tf.data.AUTOTUNE
    )


def _details(source: FileSource, rows: np.ndarray):
    rows = tf.data.Dataset.from_tensor_slices(rows).batch(256)
    return rows.map(lambda r: source.details(r, None)).unbatch()


def _speed(dataset, images: int, seconds: float) -> float:
    """Returns the images a second of a dataset, once it is warm."""
    iterator = iter(dataset.prefetch(2))
    next(iterator)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(iterator)
        count += images
    return count / (time.perf_counter() - start)


def _times(shape) -> str:
    return "x".join(map(str, shape))
