"""What a trained model says of every test image: predictions.npz."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from tfaccel import graph
from tfaccel.data.pipeline import EvaluationData
from tfaccel.lazy import keras, tf
from tfaccel.models import registry

MISTAKES = 32


def collect(model: keras.Model, data: EvaluationData) -> dict[str, np.ndarray]:
    """Returns predictions, confusion matrix and most confident mistakes.

    One more forward pass over the data, on one device.

    Args:
        model: A classifier with logits or probabilities as output.
        data: What to look at.

    Returns:
        Arrays by the keys of predictions.npz; see docs/results.md.
    """
    softmax = not registry.gives_probabilities(model)

    def best(images):
        outputs = tf.cast(model(images, training=False), tf.float32)
        outputs = tf.nn.softmax(outputs) if softmax else outputs
        return tf.argmax(outputs, -1, tf.int32), tf.reduce_max(outputs, -1)

    find_best = graph.own(best, reduce_retracing=True)
    labels, predictions, probabilities = [], [], []
    for images, truth, weights in itertools.islice(data.dataset(), data.steps):
        real = weights.numpy() > 0
        truth = tf.argmax(truth, -1) if data.one_hot else truth
        predicted, probability = find_best(images)
        for kept, values in (
            (labels, truth),
            (predictions, predicted),
            (probabilities, probability),
        ):
            kept.append(values.numpy()[real])
    found = (np.concatenate(parts) for parts in (labels, predictions, probabilities))
    return summarize(*found, data.source)


def summarize(labels, predictions, probabilities, source) -> dict[str, np.ndarray]:
    """Returns the arrays of predictions.npz.

    Args:
        labels: The truth, int [n].
        predictions: The most probable classes, int [n].
        probabilities: Their probabilities, float [n].
        source: The images and class names; see `tfaccel.data.source`.
    """
    wrong = np.flatnonzero(labels != predictions)
    worst = wrong[np.argsort(-probabilities[wrong], kind="stable")][:MISTAKES]
    confusion = np.zeros((source.num_classes, source.num_classes), np.int32)
    np.add.at(confusion, (labels, predictions), 1)
    images = [source.fetch(tf.constant([i], tf.int64))[0].numpy()[0] for i in worst]
    return {
        "labels": labels.astype(np.int32),
        "predictions": predictions.astype(np.int32),
        "probabilities": probabilities.astype(np.float32),
        "confusion": confusion,
        "class_names": np.array(source.class_names, dtype=np.str_),
        "mistakes": worst.astype(np.int32),
        "mistake_images": np.array(images, np.uint8).reshape(-1, *source.image_shape),
    }


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes predictions.npz under a temporary name, then renames it."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    partial.replace(path)


def confusion_image(confusion: np.ndarray, pixels: int = 320) -> np.ndarray:
    """Returns a confusion matrix as a picture: the darker, the larger the row's share.

    Args:
        confusion: Counts [c, c]; row: label, column: prediction.
        pixels: About how wide; a cell has at least one pixel.

    Returns:
        uint8 [height, width, 1].
    """
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    cell = max(1, pixels // len(confusion))
    shades = np.round(255 * (1 - shares)).astype(np.uint8)
    return shades.repeat(cell, axis=0).repeat(cell, axis=1)[..., None]
