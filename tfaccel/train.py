"""Trains an image classifier: flags -> config -> builders -> loop -> results.

python -m tfaccel.train --config=configs/quickstart.py
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_dict, config_flags

from tfaccel import (
    checkpoint,
    cli,
    config_flag,
    devices,
    distribution,
    ema,
    log,
    loop,
    optimizers,
    precision,
    predictions,
    pruning,
    randomness,
    results,
    schedules,
    step,
)
from tfaccel import config as config_lib
from tfaccel import plan as plan_lib
from tfaccel import report as pages
from tfaccel.callbacks import default, early_stopping, tensorboard
from tfaccel.config import arguments
from tfaccel.data import augment, mixing, normalize, pipeline, sources
from tfaccel.errors import UserError
from tfaccel.lazy import keras
from tfaccel.log import logger
from tfaccel.models import batch_norm, registry

USAGE = """Trains an image classifier as a config says, and writes what came of it.

    python -m tfaccel.train --config=configs/quickstart.py
    python -m tfaccel.train --config=cifar10_resnet9 --workdir=runs/r9 \\
        --config.precision=auto --config.duration=10ep

Any field of the config can be set with --config.FIELD=VALUE; --print_config shows
them all. A run that was stopped goes on when started again with its --workdir."""

# Where images are decoded as needed, statistics come from this many.
_STATISTICS_IMAGES = 1000


@dataclasses.dataclass
class Setup:
    """What a run is made of, once all builders have run."""

    strategy: Any
    model: Any
    plan: plan_lib.Plan
    training: pipeline.TrainingData
    validation: pipeline.EvaluationData | None
    test: pipeline.EvaluationData
    options: step.Options
    average: ema.Average | None

    @property
    def examples(self) -> dict[str, int]:
        """How many examples each split has."""
        validation = len(self.validation.source) if self.validation else 0
        counts = {"train": len(self.training.source), "validation": validation}
        return {**counts, "test": len(self.test.source)}

    @property
    def length(self) -> dict[str, float]:
        """How long the run is to be."""
        per_epoch = float(self.plan.steps_per_epoch)
        return {"total_steps": self.plan.total_steps, "steps_per_epoch": per_epoch}


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
    command = ["python", "-m", "tfaccel.train", *argv[1:]]
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
        setup = build(config)
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
        watched = _fit(setup, checkpointer, config, workdir, profile, begun)
        with ema.evaluating(setup.average):
            final = evaluate(setup)
            found = predictions.collect(setup.model, setup.test)
            save_model(setup.model, workdir / results.MODEL, setup.test.one_hot)
        predictions.write(workdir / results.PREDICTIONS, found)
        watched.log_confusion(found["confusion"])
        report = {
            "final": final,
            **watched.summary(),
            "seconds": round(time.time() - start, 1),
            **facts,
            "config": flat,
        }
        if config.pruning.final_sparsity:
            report["sparsity"] = pruning.log_sparsity(setup.model)
        results.write_json(workdir / results.REPORT, report)
        pages.build([workdir])
    logger.info(
        "done: %s, %.0f s in all; results in %s",
        _summary(report),
        time.time() - start,
        workdir,
    )
    return report


def build(config: config_dict.ConfigDict) -> Setup:
    """Runs all builders of a config, in the order that TensorFlow needs."""
    devices.configure(**arguments(devices.configure, config.devices))
    strategy = distribution.build(**arguments(distribution.build, config.distribution))
    seed = randomness.set_seed(**arguments(randomness.set_seed, config))
    splits = sources.load(**arguments(sources.load, config.data))
    plan = plan_lib.build(len(splits.train), **arguments(plan_lib.build, config))
    options = step.choose(**arguments(step.choose, config))
    with strategy.scope():
        model = build_model(config, splits.train, plan)
        average = ema.build(model, **arguments(ema.build, config.ema))
    training, *evaluation = build_data(config, splits, seed)
    return Setup(strategy, model, plan, training, *evaluation, options, average)


def build_model(config, source: sources.Source, plan: plan_lib.Plan) -> keras.Model:
    """Returns the compiled model; call it in the strategy's scope."""
    policy = precision.build(**arguments(precision.build, config))
    with precision.scope(policy):
        model = registry.build(
            source.image_shape,
            source.num_classes,
            **arguments(registry.build, config.model),
        )
    batch_norm.build(model, **arguments(batch_norm.build, config.batch_norm))
    registry.check_scaling(model, config.data.normalize)
    rate = optimizers.scale_rate(
        config.global_batch_size, **arguments(optimizers.scale_rate, config.optimizer)
    )
    schedule = schedules.build(
        rate,
        plan.total_steps,
        plan.steps_per_epoch,
        **arguments(schedules.build, config.schedule),
    )
    optimizer = optimizers.build(
        model, schedule, **arguments(optimizers.build, config.optimizer)
    )
    if policy.name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    soft_labels = mixing.build(**arguments(mixing.build, config.data.mixing)) is not None
    return compiled(model, optimizer, soft_labels)


def compiled(model: keras.Model, optimizer, soft_labels: bool = False) -> keras.Model:
    """Compiles a classifier of whole-number or soft labels; metrics heed sample weights."""
    prefix = "" if soft_labels else "Sparse"
    loss = getattr(keras.losses, f"{prefix}CategoricalCrossentropy")
    accuracy = getattr(keras.metrics, f"{prefix}CategoricalAccuracy")
    model.compile(
        optimizer=optimizer,
        loss=loss(from_logits=not registry.gives_probabilities(model)),
        weighted_metrics=[accuracy(name="accuracy")],
        jit_compile=False,
        auto_scale_loss=False,
    )
    return model


def build_data(config, splits: sources.Splits, seed: int) -> tuple:
    """Returns (training, validation or None, test) data."""
    pipeline.place(**arguments(pipeline.place, config.data))

    def statistics():
        return normalize.channel_statistics(splits.train.sample(_STATISTICS_IMAGES))

    to_float = normalize.build(
        statistics, config.model.name, **arguments(normalize.build, config.data)
    )
    augmented = build_augmentation(config, splits.train.image_shape)
    mixed = mixing.build(**arguments(mixing.build, config.data.mixing))
    busy = augmented is not None or mixed is not None
    jit = pipeline.choose_jit(busy, **arguments(pipeline.choose_jit, config.data))
    batch = config.global_batch_size
    training = pipeline.TrainingData(splits.train, seed, batch, augmented, to_float, mixed, jit)
    evaluation = [
        source and pipeline.EvaluationData(source, batch, to_float, mixed is not None)
        for source in (splits.validation, splits.test)
    ]
    return training, *evaluation


def evaluate(setup: Setup) -> dict[str, float]:
    """Returns the loss and metrics on the test images."""
    jit = setup.options.jit
    return loop.evaluate(setup.model, setup.test, strategy=setup.strategy, jit=jit)


def build_augmentation(config, image_shape: tuple[int, int, int]):
    """Returns the function that augments training images, or None if there is none."""
    section = config.data.augment
    augment.check_fits(image_shape, section.crop_padding)
    steps = [
        module.build(**arguments(module.build, place))
        for module, place in (
            (augment.resized_crop, section.resized_crop),
            (augment.shift, section),
            (augment.randaugment, section.randaugment),
            (augment.trivialaugment, section.trivialaugment),
            (augment.color_jitter, section.color_jitter),
            (augment.erasing, section.erasing),
            (augment.cutout, section.cutout),
        )
    ]
    steps = [step for step in steps if step is not augment.unchanged]
    return augment.chain(*steps) if steps else None


def save_model(model: keras.Model, path: Path, soft_labels: bool = False) -> None:
    """Saves a model that any Keras loads and evaluates, without tfaccel.

    Our learning-rate schedules are no part of Keras, so the file holds a plain
    optimizer; the run's own is in its checkpoints.
    """
    compiled(model, keras.optimizers.SGD(), soft_labels)
    partial = path.with_name(f".partial_{path.name}")
    model.save(partial)
    partial.replace(path)


def _fit(setup: Setup, checkpointer, config, workdir: Path, profile, begun) -> default.Watched:
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
    stopping = early_stopping.build(**arguments(early_stopping.build, config.early_stopping))
    pruners = pruning.build(setup.model, setup.plan, **arguments(pruning.build, config.pruning))
    try:
        loop.fit(
            setup.model,
            setup.training,
            setup.plan,
            strategy=setup.strategy,
            validation=setup.validation,
            callbacks=[note, *pruners, *watched.callbacks, *stopping],
            checkpointer=checkpointer,
            options=setup.options,
            ema=setup.average,
        )
    except KeyboardInterrupt:
        newest = checkpointer.newest()
        saved = f"{newest.name} is saved" if newest else "nothing is saved yet"
        raise KeyboardInterrupt(
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


def _new_workdir(config_flag) -> Path:
    name = Path(config_flags.get_config_filename(config_flag)).stem
    base = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (Path(base + (f"-{i}" if i else "")) for i in itertools.count())
    return next(path for path in candidates if not path.exists())


if __name__ == "__main__":
    sys.exit(cli.main(run))
