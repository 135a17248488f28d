"""The formats: what each is called, needs, and how a model is written in it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata as importlib_metadata
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.errors import UserError, did_you_mean, one_line
from tfaccel.export import rebuild
from tfaccel.lazy import keras, tf

METADATA = "export_metadata.json"
LABELS = "labels.txt"


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of export.

    Args:
        file: The artefact's name; without a suffix it is a folder.
        runtime: What runs it: "tensorflow", "litert" or "onnx".
        write: Function (model, path, calibration) that writes it.
        packages: {module: package} of what it needs beyond TensorFlow.
        exact: Whether its outputs must be those of the float32 model.
    """

    file: str
    runtime: str
    write: Callable[[keras.Model, Path, np.ndarray | None], None]
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    exact: bool = True


def check(formats: tuple[str, ...]) -> None:
    """Refuses formats that do not exist or whose packages are not installed."""
    if not formats:
        raise UserError(f"received no formats, expected some of {', '.join(FORMATS)}.")
    for name in formats:
        if name not in FORMATS:
            hint = did_you_mean(name, FORMATS)
            raise UserError(f"received the format {name!r}, which does not exist. {hint}")
        needed = FORMATS[name].packages
        missing = [needed[m] for m in needed if importlib.util.find_spec(m) is None]
        if missing:
            raise UserError(
                f"received the format {name!r}, which needs {' and '.join(missing)}: "
                "pip install 'tfaccel[export]'."
            )


def versions(formats: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions of the packages that formats need."""
    packages = {package for name in formats for package in FORMATS[name].packages.values()}
    return {package: importlib_metadata.version(package) for package in sorted(packages)}


def write(name: str, model: keras.Model, folder: Path, calibration, metadata: dict) -> Path:
    """Writes a model in one format; returns the artefact's path.

    Args:
        name: A format of `FORMATS`.
        model: The float32 model.
        folder: Where to write.
        calibration: Inputs [n, ...] of the training data; "litert_int8" needs them.
        metadata: What the artefact is to say of itself; see `tfaccel.export`.

    Raises:
        UserError: With the layer and the converter's message, if it refuses.
    """
    path = folder / FORMATS[name].file
    try:
        with _quiet():
            FORMATS[name].write(model, path, calibration)
    except UserError:
        raise
    except Exception as error:  # Converters raise many kinds.
        raise UserError(_refusal(name, model, error)) from error
    _add_metadata(path, metadata)
    return path


def _write_keras(model, path, calibration) -> None:
    for layer in rebuild.flat_layers(model):
        module = type(layer).__module__
        if module.partition(".")[0] != "keras":
            raise UserError(
                f"keras: layer {layer.name!r} is a {type(layer).__name__} of {module}, and a "
                ".keras file does not hold its code: leave keras out, the other formats do."
            )
    model.save(path)


def _write_savedmodel(model, path, calibration) -> None:
    # Not by model.export, which stores every variable twice (Keras 3.15.1).
    served = tf.Module()
    served.model_variables = [variable.value for variable in model.variables]
    image = model.inputs[0]
    served.serve = tf.function(
        lambda images: model(images, training=False),
        input_signature=[tf.TensorSpec(image.shape, image.dtype, name=rebuild.INPUT)],
    )
    tf.saved_model.save(served, str(path), signatures={"serving_default": served.serve})


def _write_litert(model, path, calibration) -> None:
    builtins = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
    model.export(str(path), format="litert", verbose=False, target_spec=builtins)


def _write_litert_int8(model, path, calibration) -> None:
    """Weights and activations int8; operations without an int8 kernel stay float32."""
    options = {
        "format": "litert",
        "verbose": False,
        "optimizations": [tf.lite.Optimize.DEFAULT],
        "representative_dataset": lambda: ([image[None]] for image in calibration),
    }
    whole, partly = tf.lite.OpsSet.TFLITE_BUILTINS_INT8, tf.lite.OpsSet.TFLITE_BUILTINS
    try:
        model.export(str(path), target_spec={"supported_ops": [whole]}, **options)
    except Exception:  # Whatever it lacks, the second try says what neither can do.
        both = {"supported_ops": [whole, partly]}
        model.export(str(path), target_spec=both, **options)


def _write_onnx(model, path, calibration) -> None:
    errors = _Records()
    logger = logging.getLogger("tf2onnx")
    logger.addHandler(errors)
    before = logger.propagate
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            # Keras looks for np.object, which NumPy 2 does not have, to patch tf2onnx.
            warnings.filterwarnings("ignore", message=".*np.object", category=FutureWarning)
            model.export(str(path), format="onnx", verbose=False)
    finally:
        logger.removeHandler(errors)
        logger.propagate = before
    # It logs what it cannot do, and writes a file that no runtime takes.
    if errors.messages:
        raise ValueError("; ".join(errors.messages))


FORMATS = {
    "keras": Format("model.keras", "tensorflow", _write_keras),
    "savedmodel": Format("savedmodel", "tensorflow", _write_savedmodel),
    "litert": Format(
        "model.tflite", "litert", _write_litert, {"ai_edge_litert": "ai-edge-litert"}
    ),
    "litert_int8": Format(
        "model_int8.tflite",
        "litert",
        _write_litert_int8,
        {"ai_edge_litert": "ai-edge-litert"},
        exact=False,
    ),
    "onnx": Format(
        "model.onnx",
        "onnx",
        _write_onnx,
        {"onnx": "onnx", "tf2onnx": "tf2onnx", "onnxruntime": "onnxruntime"},
    ),
}


class _Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def _add_metadata(path: Path, metadata: dict[str, Any]) -> None:
    """Puts metadata where each format has room for it; class names as a list, too."""
    text = json.dumps(metadata, indent=2)
    if path.suffix == ".onnx":
        import onnx

        model = onnx.load(path)
        entries = {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
        onnx.helper.set_model_props(model, entries)
        onnx.save(model, path)
    elif path.is_dir():
        # The folder that TensorFlow's loaders leave to the user.
        (path / "assets.extra").mkdir()
        (path / "assets.extra" / METADATA).write_text(text + "\n")
    else:
        # .keras is a zip; readers of .tflite ignore the zip at its end, which is how
        # TFLite's own metadata carry their label files.
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(zipfile.ZipInfo(METADATA), text)
            if path.suffix == ".tflite" and metadata.get("class_names"):
                labels = "".join(f"{label}\n" for label in metadata["class_names"])
                archive.writestr(zipfile.ZipInfo(LABELS), labels)


def _refusal(name: str, model: keras.Model, error: Exception) -> str:
    """A converter's refusal in one line: the layer first, then its own words."""
    text = str(error)
    places = re.findall(r"\"(\S+)/(\w+)@\w+\"[^']*'tf\.\2' op is neither", text)
    places += re.findall(r"op \[(\S+)/\w+: (\w+)\] is not supported", text)
    if not places:
        return f"{name}: the model cannot be converted: {one_line(text)}"
    names = {layer.name for layer in rebuild.flat_layers(model)}
    lacking = [
        f"layer {_layer(place, names)!r} uses {operation}" for place, operation in places
    ]
    detail = re.search(r"(Some ops .*?)Details:", text, re.DOTALL)
    words = one_line(detail[1] if detail else text, 200)
    return (
        f"{name}: {'; '.join(dict.fromkeys(lacking))}, which the format's built-in "
        f"operations lack. The converter says: {words}"
    )


def _layer(place: str, names: set[str]) -> str:
    """The innermost layer of a graph name, which TensorFlow may have numbered."""
    for part in reversed(place.split("/")):
        for candidate in (part, re.sub(r"_\d+$", "", part)):
            if candidate in names:
                return candidate
    return place


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Sets aside what converters print from C++; their errors come as exceptions."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as aside:
        kept = os.dup(1), os.dup(2)
        os.dup2(aside.fileno(), 1)
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            for descriptor, copy in enumerate(kept, start=1):
                os.dup2(copy, descriptor)
                os.close(copy)
