"""Evaluates a finished run's model on its test images once more.

python -m tfaccel.evaluate --workdir=runs/quickstart

The module is callable as well: `tfaccel.evaluate(model, dataset)` is
`tfaccel.training.evaluate`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import config_dict

from tfaccel import assembly, cli, devices, distribution, lazy, loop, results
from tfaccel import config as config_lib
from tfaccel.config import arguments
from tfaccel.data import sources
from tfaccel.errors import UserError, one_line
from tfaccel.lazy import keras
from tfaccel.log import logger

USAGE = """Evaluates a finished run's model.keras on the run's test images.

    python -m tfaccel.evaluate --workdir=runs/quickstart"""


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "The run's folder.", flag_values=flag_values)
    if not cli.parse(flag_values, argv, USAGE):
        return 0
    if flag_values.workdir is None:
        raise UserError("received no --workdir, expected the folder of a finished run.")
    workdir = Path(flag_values.workdir)
    final = evaluate(workdir)
    print(json.dumps(final))
    _compare(final, results.read_json(workdir / results.REPORT))
    return 0


def evaluate(workdir: Path) -> dict[str, float]:
    """Returns the loss and metrics of a run's model on its test images.

    Raises:
        UserError: If the folder holds no finished run.
    """
    config, path = load_config(workdir), model_path(workdir)
    cli.start_tensorflow()
    devices.configure(**arguments(devices.configure, config.devices))
    strategy = distribution.build(**arguments(distribution.build, config.distribution))
    splits = sources.load(**arguments(sources.load, config.data))
    with strategy.scope():
        model = load_model(path)
    *_, test = assembly.build_data(config, splits, config.seed)
    return loop.evaluate(model, test, strategy=strategy, jit=config.jit is True)


def load_config(workdir: Path) -> config_dict.ConfigDict:
    """Returns the config that a run was started with, for a single process.

    Raises:
        UserError: If the folder holds no run, or one of another version.
    """
    flat = results.read_json(workdir / results.CONFIG)
    if flat is None:
        raise UserError(
            f"received --workdir={workdir}, which holds no {results.CONFIG}, expected the "
            "folder of a run of tfaccel.train."
        )
    config = config_lib.default()
    config_lib.update(config, flat)
    if config.distribution.strategy in ("multiworker", "horovod"):
        config.distribution = config_lib.default().distribution
    config_lib.check(config)
    return config


def model_path(workdir: Path) -> Path:
    """Returns the model file of a finished run.

    Raises:
        UserError: If the run is not finished.
    """
    path = workdir / results.MODEL
    if not path.is_file():
        raise UserError(
            f"{workdir} holds no {results.MODEL}: the run is not finished. Go on with "
            f"python -m tfaccel.train, the same config and --workdir={workdir}."
        )
    return path


def load_model(path: Path) -> keras.Model:
    """Returns the model that a run saved.

    Raises:
        UserError: If the file is damaged, or needs code that is not there.
    """
    try:
        return keras.models.load_model(path)
    except (ValueError, OSError, TypeError) as error:
        raise UserError(f"{path} cannot be loaded: {one_line(error)}") from error


def _compare(final: dict[str, float], report: dict | None) -> None:
    if report is None:
        return
    differing = [k for k, v in final.items() if report["final"].get(k) != v]
    if differing:
        logger.warning(
            "not the numbers of %s: %s", results.REPORT,
            ", ".join(f"{k} {report['final'].get(k)} -> {final[k]}" for k in differing),
        )  # fmt: skip
    else:
        logger.info("the same numbers as in %s", results.REPORT)


lazy.make_callable(__name__, "tfaccel.training:evaluate")

if __name__ == "__main__":
    sys.exit(cli.main(run))
