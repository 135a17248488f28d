"""The callbacks of every run from the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel import callbacks as ours
from tfaccel import chips, devices, flops, predictions, results
from tfaccel import config as config_lib
from tfaccel.callbacks import guard, tensorboard
from tfaccel.config import arguments
from tfaccel.lazy import tf
from tfaccel.log import logger

# How many images to show, and how many to look for mistakes in.
_PICTURES = 64


@dataclasses.dataclass
class Watched:
    """The callbacks of a run, and what they have seen.

    Args:
        callbacks: All of them, in the order that they rely on.
    """

    callbacks: list
    split: Any
    throughput: Any
    memory: Any
    progress: Any
    profiler: Any
    log: Any

    @property
    def step(self) -> int:
        """Steps done, over all restarts."""
        return self.progress.step

    def summary(self) -> dict[str, Any]:
        """Returns the run's speed, time, memory and steps, for its report."""
        self.memory.latest()
        return {
            "throughput": self.throughput.summary(),
            "time": {part: round(value, 3) for part, value in self.split.seconds.items()},
            "memory": {
                "host_bytes": self.memory.peak_host_bytes,
                "gpu_peak_bytes": self.memory.peak_gpu_bytes,
            },
            "steps": self.step,
        }

    def log_confusion(self, confusion: np.ndarray) -> None:
        """Writes the confusion matrix for TensorBoard."""
        if self.log is not None:
            image = predictions.confusion_image(confusion)
            self.log.image("test", "confusion", image, self.step)

    def close(self) -> None:
        """Takes bars away and ends traces, however training ended."""
        self.progress.close()
        if self.profiler is not None:
            self.profiler.close()


def build(
    setup, config, workdir: Path, first_step: int, profile: tuple[int, int] | None = None
) -> Watched:
    """Returns a run's callbacks.

    Args:
        setup: What the run is made of; see `tfaccel.assembly.Setup`.
        config: The run's config.
        workdir: The run's folder.
        first_step: Steps done before this start.
        profile: Steps to write a trace of, if any.
    """
    plan, total = setup.plan, setup.plan.total_steps
    rows = {"every": plan.log_steps, "first_step": first_step}
    throughput = ours.Throughput(
        config.global_batch_size,
        devices=setup.strategy.num_replicas_in_sync,
        total_steps=total,
        first_step=first_step,
        flops_per_image=_flops(setup.model),
        peak_flops_per_second=_peak(setup.model.dtype_policy.name),
    )
    split, memory = ours.TimeSplit(), ours.DeviceMemory()
    progress = ours.RunProgress(total, first_step)
    events = tensorboard.build(
        workdir / results.EVENTS, plan, **arguments(tensorboard.build, config.tensorboard)
    )
    profiler = profile and ours.Profiler(workdir / results.EVENTS, *profile, first_step)
    callbacks = [
        split,
        throughput,
        ours.MetricsCSV(workdir / results.METRICS, **rows),
        progress,
        ours.NotLearning(),
        memory,
        ours.LearningRateLogger(),
        ours.TimingCSV(workdir / results.TIMING, split, throughput, memory, **rows),
        *_for_tensorboard(events, [throughput, memory], setup, config, rows),
        *guard.build(first_step, **arguments(guard.build, config.guard)),
        *([profiler] if profiler else []),
    ]
    return Watched(callbacks, split, throughput, memory, progress, profiler, events.log)


def _for_tensorboard(events, measurements, setup, config, rows) -> list:
    if events.log is None:
        return []
    norms = [ours.GradientNorms(events.gradient_norms)] if events.gradient_norms else []
    summaries = ours.Summaries(
        events.log,
        measurements=[*measurements, *norms],
        hyperparameters=config_lib.flat(config),
        **rows,
    )
    return [*norms, summaries, *(_pictures(events, setup, rows) if events.images else [])]


def _pictures(events, setup, rows) -> list:
    def inputs():
        """Augmented, but not normalised, so that they look natural."""
        data = dataclasses.replace(setup.training, normalize=None)
        images, *_ = next(iter(data.dataset()))
        return images[:_PICTURES].numpy()

    examples = None
    if setup.validation is not None:
        images, labels, weights = next(iter(setup.validation.dataset()))
        real = np.flatnonzero(weights.numpy())[:_PICTURES]
        labels = tf.argmax(labels, -1) if setup.validation.one_hot else labels
        examples = images.numpy()[real], labels.numpy()[real]
    first = rows["first_step"]
    return [ours.ImageGrid(events.log, inputs=inputs, examples=examples, first_step=first)]


def _flops(model) -> int | None:
    try:
        return flops.training(model)
    except ValueError as error:
        logger.info("throughput: without FLOPs (%s)", error)
        return None


def _peak(policy: str) -> float | None:
    names = {gpu.name for gpu in devices.gpus()}
    return chips.peak_flops_per_second(names.pop(), policy) if len(names) == 1 else None
