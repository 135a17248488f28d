"""From a model to verified files: rebuild, write, run elsewhere, compare, rename."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import host, results
from tfaccel.errors import UserError, one_line
from tfaccel.export import artefact, picture, rebuild, weights
from tfaccel.export import formats as formats_lib
from tfaccel.export.normalization import Normalization
from tfaccel.lazy import keras, tf
from tfaccel.log import logger
from tfaccel.models import registry

REPORT = "export.json"
PICTURE = "accuracy_size.svg"


def export(
    model: keras.Model,
    folder: str | Path,
    *,
    samples: np.ndarray,
    labels: np.ndarray | None = None,
    calibration: np.ndarray | None = None,
    formats: Sequence[str] = ("keras", "savedmodel"),
    class_names: Sequence[str] = (),
    normalization: Normalization | None = None,
    include_preprocessing: bool = False,
    int8_points: float = 1.0,
    threads: Sequence[int] = (1, 2),
) -> dict[str, Any]:
    """Exports a model to files that were each seen to work in their own runtime.

    The model is rebuilt in float32 with BatchNormalization folded; every file
    is loaded in a fresh process without tfaccel and run on the samples. Float
    formats must give the model's own outputs to 1e-4 and the same predictions,
    except where the top two are closer than that. Only then are files renamed
    into the folder; if one fails, none is kept.

    Args:
        model: A functional or Sequential classifier of any precision: one
            input [n, height, width, channels], one output [n, classes].
        folder: Where to write; files of an earlier export are replaced, other
            files never.
        samples: Images to verify with; uint8 if `normalization` is given, else
            what the model takes. 512 real ones are a good number.
        labels: Whole numbers [n]; without them the float32 model's own
            predictions count as right.
        calibration: Images like `samples`, of the training data; needed by
            "litert_int8", a few hundred will do.
        formats: Of "keras", "savedmodel", "litert", "litert_int8", "onnx".
        class_names: One name a class, written into each artefact.
        normalization: What turns uint8 images into the model's input.
        include_preprocessing: Put the normalisation into the model, which then
            takes uint8 images.
        int8_points: Points of accuracy that "litert_int8" may lose.
        threads: Numbers of threads to measure latency with; empty for none.

    Returns:
        What export.json holds: of each artefact its size, accuracy, largest
        difference, zeros and latency.

    Raises:
        UserError: If something is asked for that cannot be, or does not verify.

    Example:
        tfaccel.export.export(model, "exported", formats=["litert"], samples=images)
    """
    names = tuple(dict.fromkeys(formats))
    _check(names, samples, labels, calibration, normalization, include_preprocessing)
    to_input = normalization or np.asarray
    to_artefact = np.asarray if include_preprocessing else to_input
    with tf.device("CPU:0"):
        exported, reference = _rebuilt(model, to_input(samples))
        if include_preprocessing:
            exported = rebuild.include_preprocessing(exported, normalization)
    metadata = _metadata(exported, class_names, normalization, include_preprocessing)
    right = reference.argmax(axis=1) if labels is None else np.asarray(labels)
    if calibration is not None:
        calibration = to_artefact(calibration)
    with _renamed_when_whole(Path(folder)) as partial:
        paths = {}
        for name in names:
            logger.info("export: writing %s", name)
            paths[name] = formats_lib.write(name, exported, partial, calibration, metadata)
        logger.info("export: running each in its own runtime")
        measured = artefact.measure(paths, to_artefact(samples), threads=threads)
        report = {
            "images": len(samples),
            "images_sha256": hashlib.sha256(np.ascontiguousarray(samples)).hexdigest(),
            "labelled": labels is not None,
            "accuracy": _share(reference, right),
            "batch_norm": {
                "folded": rebuild.batch_norms(model) - rebuild.batch_norms(exported),
                "kept": rebuild.batch_norms(exported),
            },
            "artefacts": {
                name: _entry(name, path, measured, reference, right, int8_points)
                for name, path in paths.items()
            },
            "input": metadata["input"],
            "hardware": host.describe(),
            "versions": {**results.versions(), **formats_lib.versions(names)},
        }
        results.write_json(partial / formats_lib.METADATA, metadata)
        results.write_json(partial / REPORT, report)
        (partial / PICTURE).write_text(picture.draw(report["artefacts"]))
    return report


def _check(formats, samples, labels, calibration, normalization, include_preprocessing) -> None:
    formats_lib.check(formats)
    if "litert_int8" in formats and (calibration is None or len(calibration) == 0):
        raise UserError(
            "received the format 'litert_int8' without calibration images: int8 needs to "
            "see what the model is fed. Give some hundred training images as calibration."
        )
    if include_preprocessing and normalization is None:
        raise UserError(
            "received include_preprocessing=True without a normalization, expected what "
            "turns uint8 images into the model's input."
        )
    dtype = "uint8" if normalization is not None else "float32"
    for name, images in (("samples", samples), ("calibration", calibration)):
        if images is None:
            continue
        if np.ndim(images) != 4 or len(images) == 0 or images.dtype != dtype:
            raise UserError(
                f"received {name} of dtype {getattr(images, 'dtype', type(images).__name__)} "
                f"and shape {np.shape(images)}, expected {dtype} [n, height, width, channels]."
            )
    if labels is not None and np.shape(labels) != (len(samples),):
        raise UserError(
            f"received labels of shape {np.shape(labels)} for {len(samples)} samples, "
            f"expected ({len(samples)},)."
        )


def _rebuilt(model: keras.Model, inputs: np.ndarray) -> tuple[keras.Model, np.ndarray]:
    """Returns the model to export, and what the unfolded one makes of the inputs."""
    plain = rebuild.float32(model)
    shape = tuple(plain.inputs[0].shape)
    if inputs.shape[1:] != shape[1:]:
        raise UserError(
            f"received samples of shape {inputs.shape}, expected {shape} as the model takes."
        )
    reference = _predict(plain, inputs)
    if not np.isfinite(reference).all():
        raise UserError("the model's outputs are not finite: there is nothing to export.")
    if all(layer.compute_dtype == "float32" for layer in rebuild.flat_layers(model)):
        own = _predict(model, inputs)
        if np.abs(own - reference).max() > 1e-3 * max(1.0, np.abs(reference).max()):
            raise UserError(
                f"the model {model.name!r} cannot be rebuilt from its layers: the copy gives "
                "other outputs. Does its class override call()?"
            )
    folded = rebuild.fold_batch_norm(plain)
    difference = np.abs(_predict(folded, inputs) - reference).max()
    if not difference < artefact.TOLERANCE / 2:
        logger.warning("BatchNormalization is kept: folding changes outputs by %g", difference)
        return plain, reference
    return folded, reference


def _predict(model: keras.Model, inputs: np.ndarray) -> np.ndarray:
    return np.float32(model.predict(inputs, batch_size=32, verbose=0))


def _share(outputs: np.ndarray, right: np.ndarray) -> float:
    return float(np.mean(outputs.argmax(axis=1) == right))


def _metadata(exported, class_names, normalization, included: bool) -> dict[str, Any]:
    classes = exported.outputs[0].shape[-1]
    if class_names and len(class_names) != classes:
        raise UserError(
            f"received {len(class_names)} class names for a model of {classes} classes."
        )
    image = exported.inputs[0]
    expected = {"shape": list(image.shape[1:]), "dtype": str(image.dtype)}
    if normalization is not None:
        expected["normalization"] = {
            "scale": list(normalization.scale),
            "offset": list(normalization.offset),
            "in_the_model": included,
        }
    return {
        "name": exported.name,
        "class_names": list(class_names),
        "input": expected,
        "output": "probabilities" if registry.gives_probabilities(exported) else "logits",
    }


def _entry(name, path, measured, reference, right, int8_points) -> dict[str, Any]:
    """Verifies one artefact; returns what export.json says of it."""
    outputs = measured.outputs[name]
    compared = artefact.compare(name, outputs, reference)
    accuracy = _share(outputs, right)
    if not formats_lib.FORMATS[name].exact:
        artefact.check_int8(accuracy, _share(reference, right), len(right), int8_points)
    entry = {
        "file": path.name,
        **artefact.sizes(path),
        "accuracy": accuracy,
        **compared,
        "sparsity": weights.summary(weights.read(path)),
        "latency": measured.latency.get(name, []),
    }
    if path.suffix == ".tflite":
        entry["float_operations"] = weights.float_operations(path)
    return entry


@contextlib.contextmanager
def _renamed_when_whole(folder: Path) -> Iterator[Path]:
    """Yields a folder to write to, whose content then replaces an earlier export's."""
    earlier = _earlier(folder)
    was_there = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial_", dir=folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be written to: {one_line(error)}") from error
    try:
        yield partial
        for path in partial.iterdir():
            if (folder / path.name).exists() and path.name not in earlier:
                raise UserError(
                    f"{folder / path.name} exists and is no export of tfaccel: choose another "
                    "folder."
                )
        for name in earlier:
            _remove(folder / name)
        for path in sorted(partial.iterdir(), key=lambda path: path.name == REPORT):
            path.replace(folder / path.name)
    finally:
        _remove(partial)
        if not was_there and not any(folder.iterdir()):
            folder.rmdir()


def _earlier(folder: Path) -> list[str]:
    """The names that an earlier export left in a folder, as its report lists them."""
    report = results.read_json(folder / REPORT)
    if report is None:
        return []
    files = [entry["file"] for entry in report.get("artefacts", {}).values()]
    known = {form.file for form in formats_lib.FORMATS.values()}
    return [*(file for file in files if file in known), formats_lib.METADATA, PICTURE, REPORT]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
