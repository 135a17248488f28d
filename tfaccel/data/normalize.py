"""Normalisation of uint8 images to the numbers a model is fed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

import numpy as np

from tfaccel import fields
from tfaccel.data.source import Source
from tfaccel.errors import UserError, did_you_mean
from tfaccel.lazy import keras, tf

Normalize = Literal["dataset", "model", "given", "unit", "none"]
_IMAGENET = "mean='123.675,116.28,103.53' and deviation='58.395,57.12,57.375'"


def check(
    *, normalize: Normalize, normalize_model: str | None, mean: str, deviation: str
) -> None:
    """Refuses statistics that are missing, superfluous or of another scale."""
    fields.check(Normalize, normalize, "data.normalize")
    if normalize_model is not None and normalize != "model":
        raise UserError(
            f"received data.normalize_model={normalize_model} with data.normalize="
            f"{normalize}: it goes with 'model', and only with it."
        )
    if normalize != "given" and (mean or deviation):
        raise UserError(
            f"received data.mean={mean!r} and data.deviation={deviation!r} with "
            f"data.normalize={normalize}: they go with 'given', and only with it."
        )
    if normalize == "given":
        _numbers(mean, deviation)


def check_model(normalize: Normalize, normalize_model: str | None, model_name: str) -> None:
    """Refuses the preprocessing of a model that is not one of Keras's."""
    name = normalize_model or model_name
    if normalize == "model" and (":" in name or not name[:1].isupper()):
        raise UserError(
            f"received data.normalize=model for the model {name}, which is not of "
            "keras.applications: name the one whose weights it starts from, as in "
            "data.normalize_model=VGG16, or use data.normalize=dataset."
        )


def build(
    statistics: Callable[[], tuple[np.ndarray, np.ndarray]],
    model_name: str = "",
    *,
    normalize: Normalize = "dataset",
    normalize_model: str | None = None,
    mean: str = "",
    deviation: str = "",
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from images of 0..255 to float32.

    Args:
        statistics: Returns the (mean, standard deviation) of each channel of
            the training images; called only if needed.
        model_name: The model that is fed.
        normalize: "dataset" to mean 0 and deviation 1 over the training images,
            "model" as the weights of keras.applications were trained, "given" by
            `mean` and `deviation`, "unit" to 0..1, "none" to leave 0..255 for a
            model that rescales.
        normalize_model: The function of keras.applications that "model" means, such
            as "VGG16"; by default the model's own.
        mean: Mean of each channel as pixel values, such as "123.7,116.3,103.5".
        deviation: Standard deviation of each channel, likewise.

    Returns:
        A function (images [..., channels]) -> float32 of the same shape.

    Raises:
        UserError: If the statistics or the model do not fit.

    Example:
        to_float = normalize.build(None, normalize="model", normalize_model="VGG16")
    """
    check(normalize=normalize, normalize_model=normalize_model, mean=mean, deviation=deviation)
    if normalize == "model":
        check_model(normalize, normalize_model, model_name)
        return _preprocessing(normalize_model or model_name)
    offset, scale = np.float32(0), np.float32(1)
    if normalize == "unit":
        scale = np.float32(1) / np.float32(255)
    elif normalize != "none":
        both = _numbers(mean, deviation) if normalize == "given" else statistics()
        offset, scale = both[0], np.float32(1) / both[1]

    def apply(images):
        return (tf.cast(images, tf.float32) - _row(offset, images)) * _row(scale, images)

    return apply


def _preprocessing(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns what keras.applications does to images for a model's ImageNet weights."""
    applications = {n: f for n, f in vars(keras.applications).items() if n[0].isupper()}
    if name not in applications:
        raise UserError(
            f"received data.normalize=model for {name!r}, which keras.applications does not "
            f"have. {did_you_mean(name, applications)}"
        )
    module = applications[name].__module__.rpartition(".")[2]
    preprocess = getattr(keras.applications, module).preprocess_input
    pixel = np.float32([[[[255, 0, 128]]]])
    if np.array_equal(preprocess(pixel.copy()), pixel):
        optional = "include_preprocessing" in inspect.signature(applications[name]).parameters
        switch = " and model.arguments.include_preprocessing=True" if optional else ""
        raise UserError(
            f"received data.normalize=model for {name}, whose preprocessing is a part of the "
            f"model: use data.normalize=none{switch}."
        )
    # As float32: on whole numbers the negative results would wrap around.
    return lambda images: preprocess(tf.cast(images, tf.float32), data_format="channels_last")


def _numbers(mean: str, deviation: str) -> tuple[np.ndarray, np.ndarray]:
    """Parses one number a channel for each; both float32 [channels]."""
    try:
        means, deviations = (
            np.array([float(part) for part in text.split(",")], np.float32)
            for text in (mean, deviation)
        )
    except ValueError:
        means = deviations = np.zeros(0, np.float32)
    sound = len(means) == len(deviations) > 0 and np.isfinite(means).all()
    if not sound or not (np.isfinite(deviations) & (deviations > 0)).all():
        raise UserError(
            f"received data.mean={mean!r} and data.deviation={deviation!r}, expected one "
            f"number for each channel in both, such as {_IMAGENET}."
        )
    if means.max() <= 1 and deviations.max() <= 1:
        raise UserError(
            f"received data.mean={mean!r} and data.deviation={deviation!r}, which look like "
            f"shares of 255, expected pixel values, such as {_IMAGENET}."
        )
    return means, deviations


def channel_statistics(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Returns the exact mean and deviation of each channel of a source's images.

    Args:
        source: Images of dtype uint8.

    Returns:
        (mean float32 [channels], deviation float32 [channels]); a channel that
        never varies gets deviation 1.
    """
    counts = np.zeros((source.image_shape[-1], 256), np.int64)
    for start in range(0, len(source), 4096):
        images = source.images[source.index[start : start + 4096]]
        for channel, row in enumerate(counts):
            row += np.bincount(images[..., channel].ravel(), minlength=256)
    values = np.arange(256, dtype=np.float64)
    shares = counts / counts.sum(axis=1, keepdims=True)
    means = shares @ values
    variances = (shares * (values - means[:, None]) ** 2).sum(axis=1)
    deviations = np.sqrt(np.where(variances > 0, variances, 1.0))
    return np.float32(means), np.float32(deviations)


def _row(values, images):
    """Repeats a number a channel for a whole row: pixel by pixel is far slower."""
    if np.ndim(values) == 0 or None in images.shape[-2:]:
        return values
    return np.broadcast_to(values, images.shape[-2:])
