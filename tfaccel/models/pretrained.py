"""A new head on a network of keras.applications, with ImageNet weights or without."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tfaccel import host
from tfaccel.errors import UserError, one_line
from tfaccel.lazy import keras
from tfaccel.log import logger
from tfaccel.models.layers import logits


def build(
    name: str,
    input_shape: tuple[int, int, int],
    num_classes: int,
    *,
    imagenet: bool,
    hidden_units: int = 0,
    freeze: bool = False,
    arguments: dict | None = None,
) -> keras.Model:
    """Returns a network of keras.applications with a new head.

    The head is global average pooling, a hidden layer with ReLU if asked for, and
    one logit a class.

    Args:
        name: A function of keras.applications, such as "VGG16".
        input_shape: (height, width, channels) of the images.
        num_classes: Number of outputs.
        imagenet: Start from the weights that Keras publishes.
        hidden_units: Units of the hidden layer; 0 for none.
        freeze: Train the head alone. Frozen batch normalisation keeps its
            statistics.
        arguments: Further keyword arguments of the function.

    Raises:
        UserError: If the weights are neither here nor to be fetched.

    Example:
        model = build("VGG16", (32, 32, 3), 10, imagenet=True, hidden_units=128, freeze=True)
    """
    function = getattr(keras.applications, name)
    given = {"include_top": False, "weights": "imagenet" if imagenet else None}
    with tempfile.TemporaryDirectory() as links, _files_at_hand(name, Path(links)):
        base = function(input_shape=input_shape, **given, **(arguments or {}))
    base.trainable = not freeze
    x = keras.layers.GlobalAveragePooling2D()(base.output)
    if hidden_units:
        x = keras.layers.Dense(hidden_units, activation="relu", name="hidden")(x)
    return keras.Model(base.input, logits(x, num_classes), name=f"{base.name}_transfer")


@contextlib.contextmanager
def _files_at_hand(name: str, links: Path) -> Iterator[None]:
    """Takes weights files that lie where Keras keeps them, whoever put them there.

    Keras would delete a file it does not know before it finds that there is no
    network to fetch its own.

    PRIVATE KERAS API (3.15): keras.src.utils.file_utils.get_file, by which all of
    keras.applications find their weights. tests/models/test_pretrained.py tells
    when Keras changes.
    """
    from keras.src.utils import file_utils

    fetch = file_utils.get_file

    def get_file(fname=None, origin=None, **options):
        path = _keras_home() / options.get("cache_subdir", "datasets") / fname
        if path.is_file():
            _check_hash(path, options.get("file_hash"))
            return str(_named_as_its_form(path, links))
        try:
            host.check_network()
            return fetch(fname, origin, **options)
        except Exception as error:  # Networks fail in many ways.
            raise UserError(
                f"the ImageNet weights of {name} are not here and could not be fetched "
                f"({one_line(error, 120)}): place {fname} (from {origin}) in {path.parent}, or "
                "start from random weights with --config.model.weights=None."
            ) from error

    file_utils.get_file = get_file
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the ImageNet weights of {name} in {_keras_home() / 'models'} cannot be read "
            f"({one_line(error, 120)}): delete the file and fetch or place it again."
        ) from error
    finally:
        file_utils.get_file = fetch


def _keras_home() -> Path:
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()


def _named_as_its_form(path: Path, links: Path) -> Path:
    """Returns the file, or a link to it whose ending tells Keras how to read it.

    Keras 3 writes weights in a new form to files that must end in .weights.h5; the
    files it publishes are of the old form.
    """
    import h5py

    with h5py.File(path) as file:
        if "layer_names" in file.attrs:
            return path
    link = links / f"{path.stem}.weights.h5"
    link.symlink_to(path.resolve())
    return link


def _check_hash(path: Path, expected: str | None) -> None:
    if expected is None:
        return
    kind = {32: "md5", 64: "sha256"}.get(len(expected))
    # hashlib.file_digest is newer than Python 3.10; these files fit in memory.
    if kind and hashlib.new(kind, path.read_bytes()).hexdigest() == expected:
        return
    logger.warning("model: %s is not the file that Keras publishes; used as it is", path)
