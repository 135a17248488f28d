"""Trains an image classifier: flags -> config -> builders -> loop -> results.

python -m tfaccel.train --config=configs/quickstart.py
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_dict, config_flags

from tfaccel import (
    assembly,
    checkpoint,
    cli,
    cluster,
    config_flag,
    devices,
    ema,
    log,
    loop,
    predictions,
    pruning,
    results,
    termination,
)
from tfaccel import config as config_lib
from tfaccel import replicas as replicas_lib
from tfaccel import report as pages
from tfaccel.callbacks import default, early_stopping, tensorboard
from tfaccel.callbacks.writers import for_worker
from tfaccel.config import arguments
from tfaccel.errors import UserError
from tfaccel.lazy import keras
from tfaccel.log import logger

USAGE = """Trains an image classifier as a config says, and writes what came of it.

    python -m tfaccel.train --config=configs/quickstart.py
    python -m tfaccel.train --config=cifar10_resnet9 --workdir=runs/r9 \\
        --config.precision=auto --config.duration=10ep

Any field of the config can be set with --config.FIELD=VALUE; --print_config shows
them all. A run that was stopped goes on when started again with its --workdir."""


def run(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    flag_values = flags.FlagValues()
    flags.DEFINE_string(
        "workdir",
        None,
        "The run's folder; runs/CONFIG-TIME if not given. If it holds an unfinished run of "
        "the same config, that run goes on.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "allow_growth",
        False,
        "Let GPU memory grow as needed: short for --config.devices.memory_growth.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "print_config",
        False,
        "Print every field with where its value comes from, and stop.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "profile_steps",
        None,
        "Write a trace of these steps for TensorBoard's profiler, such as 10:20: from step "
        "10, counted from 0, up to but not including step 20.",
        flag_values=flag_values,
    )
    command = ["python", "-m", *_program(), *argv[1:]]
    argv = config_flag.define(flag_values, argv)
    if not config_flag.parse(flag_values, argv, USAGE):
        return 0
    config = flag_values.config
    if flag_values.allow_growth:
        config.devices.memory_growth = True
    config_lib.check(config)
    profile = flag_values.profile_steps
    profile = None if profile is None else tensorboard.profile_steps(profile)
    if flag_values.print_config:
        print(config_flag.describe(config, flag_values))
        return 0
    if flag_values.workdir == "":
        raise UserError("received --workdir=, expected a folder: name one, or leave it out.")
    workdir = Path(flag_values.workdir or _new_workdir(flag_values["config"]))
    train(config, workdir, profile, command)
    return 0


def train(
    config: config_dict.ConfigDict,
    workdir: Path,
    profile: tuple[int, int] | None = None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Trains, evaluates and writes the results; returns the report.

    Args:
        config: A config that `tfaccel.config.check` accepts.
        workdir: The run's folder.
        profile: Steps to write a trace of: the first, and the one to stop before.
        command: The command line that says all this, for the report.

    Raises:
        UserError: If something the config asks for cannot be done; nothing is
            left behind then.
    """
    start = time.time()
    flat = config_lib.flat(config)
    results.check_workdir(workdir, flat)
    report = results.read_json(workdir / results.REPORT)
    if report is not None:
        logger.info("%s is finished already: %s", workdir, _summary(report))
        return report
    cli.start_tensorflow()
    decided = []
    with log.recorded(decided):
        setup = assembly.build(config)
    replicas = replicas_lib.of(setup.strategy)
    facts = {
        "examples": setup.examples,
        "hardware": devices.describe(),
        "versions": results.versions(),
    }
    begun = {"command": list(command), "decided": decided, **setup.length, **facts}
    checkpointer = checkpoint.Checkpointer(
        workdir / results.CHECKPOINTS,
        setup.plan,
        **arguments(checkpoint.Checkpointer, config.checkpoint),
    )
    results.check_disk(workdir, results.run_bytes(setup.model, checkpointer.keep))
    logger.info("workdir: %s", workdir)
    with results.disk_errors(workdir):
        watched = _fit(setup, replicas, checkpointer, config, workdir, profile, begun)
        with ema.evaluating(setup.average):
            jit = setup.options.jit
            final = loop.evaluate(setup.model, setup.test, strategy=replicas, jit=jit)
            report = {
                "final": final,
                **watched.summary(),
                "seconds": round(time.time() - start, 1),
                **facts,
                "config": flat,
            }
            if config.pruning.final_sparsity:
                report["sparsity"] = pruning.log_sparsity(setup.model)
            assembly.recompile(setup.model, setup.test.one_hot)
            if replicas.chief:
                _write(setup, watched, report, workdir)
        # The others stay until the chief has written, as an end of theirs ends all.
        replicas.agree(0)
    if replicas.chief:
        seconds = time.time() - start
        logger.info(
            "done: %s, %.0f s in all; results in %s", _summary(report), seconds, workdir
        )
    return report


def _write(setup: assembly.Setup, watched: default.Watched, report, workdir: Path) -> None:
    """Writes what comes of a run; report.json last, as it says that all is there."""
    found = predictions.collect(setup.model, setup.test)
    predictions.write(workdir / results.PREDICTIONS, found)
    watched.log_confusion(found["confusion"])
    assembly.save_model(setup.model, workdir / results.MODEL)
    results.write_json(workdir / results.REPORT, report)
    pages.build([workdir])


def _fit(
    setup: assembly.Setup, replicas, checkpointer, config, workdir: Path, profile, begun
) -> default.Watched:
    """Trains; returns what watched it."""
    newest = checkpointer.newest()
    first_step = checkpointer.read_state(newest)["step"] if newest else 0
    with log.recorded(begun["decided"]):
        watched = default.build(setup, config, workdir, first_step, profile)
    note = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: results.note_start(
            workdir, config_lib.flat(config), {**begun, "first_step": first_step}
        )
    )
    note.chief_only = True
    stopping = early_stopping.build(**arguments(early_stopping.build, config.early_stopping))
    pruners = pruning.build(setup.model, setup.plan, **arguments(pruning.build, config.pruning))
    request = termination.Request()
    try:
        with request.heeded():
            loop.fit(
                setup.model,
                setup.training,
                setup.plan,
                strategy=replicas,
                validation=setup.validation,
                callbacks=for_worker([note, *pruners, *watched.callbacks, *stopping], replicas),
                checkpointer=checkpointer,
                options=setup.options,
                ema=setup.average,
                request=request,
            )
    except KeyboardInterrupt as interrupt:  # or its Terminated
        if not replicas.chief:
            raise  # The chief tells; only it counts the steps.
        newest = checkpointer.newest()
        saved = f"{newest.name} is saved" if newest else "nothing is saved yet"
        raise type(interrupt)(
            f"step {watched.step}/{setup.plan.total_steps}, {saved}; the same command with "
            f"--workdir={workdir} goes on from there"
        ) from None
    finally:
        watched.close()
    for pruner in pruners:
        pruner.verify()
    return watched


def _summary(report: dict[str, Any]) -> str:
    final, speed = report["final"], report["throughput"]["images_per_second"]
    pace = f", {speed:,.0f} images/s" if speed else ""
    return (
        f"{100 * final['accuracy']:.2f} % accuracy and loss {final['loss']:.4f} on "
        f"{report['examples']['test']:,} test images after {report['steps']} steps{pace}"
    )


def _program() -> list[str]:
    """What was started: this module, by our launcher perhaps."""
    workers = cluster.discover() if cluster.LAUNCHED in os.environ else None
    if workers is None:
        return ["tfaccel.train"]
    return ["tfaccel.launch", f"--workers={len(workers.workers)}", "--"]


def _new_workdir(config_flag) -> Path:
    name = Path(config_flags.get_config_filename(config_flag)).stem
    if cluster.STARTED in os.environ:  # The launcher's workers share one folder.
        return Path(f"runs/{name}-{os.environ[cluster.STARTED]}")
    workers = cluster.discover()
    if workers is not None and len(workers.workers) > 1:
        raise UserError(
            f"received no --workdir for {len(workers.workers)} workers, expected the same "
            "folder on all of them, such as --workdir=runs/first, where all can read it."
        )
    base = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (Path(base + (f"-{i}" if i else "")) for i in itertools.count())
    return next(path for path in candidates if not path.exists())


if __name__ == "__main__":
    sys.exit(cli.main(run))
