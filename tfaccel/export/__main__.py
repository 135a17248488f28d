"""Exports a finished run's model to files that were seen to work.

python -m tfaccel.export --workdir=runs/quickstart --formats=keras,litert,onnx
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from tfaccel import cli, devices, evaluate, results
from tfaccel.config import arguments
from tfaccel.data import normalize, sources
from tfaccel.errors import UserError
from tfaccel.export import exporter, normalization, picture, table
from tfaccel.export import formats as formats_lib
from tfaccel.log import logger

FOLDER = "export"
_CALIBRATION_IMAGES = 256
USAGE = """Exports a finished run's model.keras to WORKDIR/export, each file verified in its
own runtime on the run's test images.

    python -m tfaccel.export --workdir=runs/quickstart
    python -m tfaccel.export --workdir=runs/quickstart --formats=litert,litert_int8 \\
        --include_preprocessing"""


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values = _flags()
    if not cli.parse(flag_values, argv, USAGE):
        return 0
    if flag_values.workdir is None:
        raise UserError("received no --workdir, expected the folder of a finished run.")
    workdir, beside = Path(flag_values.workdir), None
    threads = _threads(flag_values.threads)
    if flag_values.beside is not None:
        beside = _read_report(Path(flag_values.beside))
    report = export_run(
        workdir,
        formats=tuple(flag_values.formats),
        include_preprocessing=flag_values.include_preprocessing,
        test_images=flag_values.test_images,
        int8_points=flag_values.int8_points,
        threads=threads,
    )
    print(table.draw(report))
    if beside is not None:
        _compare(workdir / FOLDER, report, Path(flag_values.beside), beside)
    logger.info("done: %s", workdir / FOLDER)
    return 0


def export_run(
    workdir: Path,
    *,
    formats: tuple[str, ...],
    include_preprocessing: bool = False,
    test_images: int = 512,
    int8_points: float = 1.0,
    threads: Sequence[int] = (1, 2),
) -> dict[str, Any]:
    """Exports a finished run's model to WORKDIR/export; returns the report.

    Args:
        workdir: The run's folder.
        formats: As for `tfaccel.export.export`.
        include_preprocessing: Whether the exported model takes uint8 images.
        test_images: How many test images to verify with, evenly spread.
        int8_points: As for `tfaccel.export.export`.
        threads: As for `tfaccel.export.export`.

    Raises:
        UserError: As `tfaccel.export.export`, or if the run is not finished or
            its data are gone.
    """
    config, path = evaluate.load_config(workdir), evaluate.model_path(workdir)
    formats_lib.check(formats)
    cli.start_tensorflow()
    # A CPU does all of it: GPUs round float32 products to 10 bits (TF32).
    devices.configure(**{**arguments(devices.configure, config.devices), "visible": "none"})
    splits = sources.load(**arguments(sources.load, config.data))
    test, train = splits.test, splits.train

    def statistics():
        return normalize.channel_statistics(train)

    to_float = normalize.build(statistics, **arguments(normalize.build, config.data))
    chosen = _spread(test, test_images)
    return exporter.export(
        evaluate.load_model(path),
        workdir / FOLDER,
        samples=test.images[chosen],
        labels=test.labels[chosen],
        calibration=train.images[_spread(train, _CALIBRATION_IMAGES)],
        formats=formats,
        class_names=test.class_names,
        normalization=normalization.from_function(to_float, test.image_shape[-1]),
        include_preprocessing=include_preprocessing,
        int8_points=int8_points,
        threads=threads,
    )


def _flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "The run's folder.", flag_values=flag_values)
    flags.DEFINE_list(
        "formats",
        ",".join(formats_lib.FORMATS),
        f"What to write, of {', '.join(formats_lib.FORMATS)}; all of them if not given.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "include_preprocessing",
        False,
        "Put the run's normalisation into the model, which then takes uint8 images.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "test_images",
        512,
        "How many test images to verify with.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "int8_points",
        1.0,
        "Points of accuracy that litert_int8 may lose.",
        lower_bound=0.0,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "beside",
        None,
        "Another run's folder, exported before (the dense one of a pruned run, say), to put "
        "beside this one in table and picture.",
        flag_values=flag_values,
    )
    flags.DEFINE_list(
        "threads",
        "1,2",
        "Numbers of CPU threads to measure latency with; empty for no measurement.",
        flag_values=flag_values,
    )
    return flag_values


def _threads(words: Sequence[str]) -> tuple[int, ...]:
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(
            f"received --threads={','.join(words)}, expected whole numbers such as 1,2, or "
            "nothing."
        )
    return tuple(map(int, words))


def _read_report(workdir: Path) -> dict[str, Any]:
    report = results.read_json(workdir / FOLDER / exporter.REPORT)
    if report is None:
        raise UserError(
            f"received --beside={workdir}, which holds no {FOLDER}/{exporter.REPORT}: export "
            f"it first with python -m tfaccel.export --workdir={workdir}."
        )
    return report


def _compare(folder: Path, report: dict, other: Path, beside: dict) -> None:
    """Prints another run's export below this one's and draws both."""
    if report["images_sha256"] != beside["images_sha256"]:
        logger.warning("%s was verified on other images: not compared", other)
        return
    print(f"\n{other}:\n{table.draw(beside)}\n\n{table.ratios(report, beside)}\n")
    theirs = {f"{other.name}/{name}": entry for name, entry in beside["artefacts"].items()}
    drawing = picture.draw({**report["artefacts"], **theirs})
    (folder / exporter.PICTURE).write_text(drawing)


def _spread(source: sources.Source, count: int) -> np.ndarray:
    """Rows of up to `count` examples, evenly spread: files may be sorted by class."""
    places = np.linspace(0, len(source) - 1, min(count, len(source))).round()
    return source.index[places.astype(int)]


if __name__ == "__main__":
    sys.exit(cli.main(run))
