"""From a config to what a run is made of: all builders, in the order TensorFlow needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from tfaccel import (
    devices,
    distribution,
    ema,
    optimizers,
    precision,
    randomness,
    schedules,
    step,
)
from tfaccel import plan as plan_lib
from tfaccel.config import arguments
from tfaccel.data import augment, mixing, normalize, pipeline, sources
from tfaccel.lazy import keras
from tfaccel.models import batch_norm, registry

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


def recompile(model: keras.Model, soft_labels: bool = False) -> None:
    """Gives a trained model what any Keras can load: a plain optimizer.

    Our learning-rate schedules are no part of Keras; the run's own optimizer is in
    its checkpoints.
    """
    compiled(model, keras.optimizers.SGD(), soft_labels)


def save_model(model: keras.Model, path: Path) -> None:
    """Saves a model that any Keras loads and evaluates, without tfaccel."""
    partial = path.with_name(f".partial_{path.name}")
    model.save(partial)
    partial.replace(path)
