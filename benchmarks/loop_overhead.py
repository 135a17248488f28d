"""What the loop costs beside the compiled step, with all default callbacks on.

    python benchmarks/loop_overhead.py --json=loop_overhead.json

"outside": the share of a ResNet-9 run's wall time, from its first step on, that was
spent outside of the compiled calls (evaluation's are compiled, too); median of the
rounds. The others are steps a second of a tiny model, where overhead rules: ours as it
is, ours in calls of k steps, and Keras's `fit` without any callback, with
steps_per_execution 1 and k. They take turns in one process; ratios are of medians.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import keras
import numpy as np

from tfaccel import assembly, devices, inference_step, loop, plan, results, step
from tfaccel import config as config_lib
from tfaccel.callbacks import default
from tfaccel.data import pipeline, source
from tfaccel.lazy import tf


class CallClock:
    """Adds up the time within the compiled calls, until their results are there."""

    def __init__(self):
        self.seconds = 0.0
        for kind in (step.TrainingStep, inference_step.EvaluationStep):
            kind.__call__ = self._timed(kind.__call__)

    def _timed(self, original):
        def call(compiled, iterator, steps, *timed):
            start = time.perf_counter()
            outcome = original(compiled, iterator, steps, *timed)
            compiled.model.get_metrics_result()["loss"].numpy()
            self.seconds += time.perf_counter() - start
            return outcome

        return call


class Clock(keras.callbacks.Callback):
    """The time and the steps since the first `warm` steps, which compile."""

    def __init__(self, warm: int = 0):
        super().__init__()
        self.warm, self.steps, self.start = warm, 0, None

    def on_train_batch_begin(self, batch, logs=None):
        """Starts once warm."""
        self._first = batch
        if self.start is None and self.steps >= self.warm:
            self.start, self.begun = time.perf_counter(), self.steps

    def on_train_batch_end(self, batch, logs=None):
        """Counts."""
        self.steps += batch + 1 - self._first

    def on_train_end(self, logs=None):
        """Stops."""
        self.seconds = time.perf_counter() - self.start

    @property
    def steps_per_second(self) -> float:
        """Steps a second since the warm-up."""
        return (self.steps - self.begun) / self.seconds


class Cut(keras.callbacks.Callback):
    """Has our loop end a call every k steps."""

    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def next_boundary(self, at: int) -> int:
        """Returns the next multiple of k."""
        return (at // self.k + 1) * self.k


def fit_ours(setup, config, workdir: Path, *added) -> None:
    """Trains as the command line does."""
    watched = default.build(setup, config, workdir, 0)
    loop.fit(
        setup.model,
        setup.training,
        setup.plan,
        validation=setup.validation,
        callbacks=[*watched.callbacks, *added],
    )
    watched.close()


def outside_share(options, config, calls: CallClock) -> float:
    """Returns the share of a ResNet-9 run's time outside of compiled calls."""
    setup = assembly.build(config)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        before = calls.seconds
        fit_ours(setup, config, Path(folder), clock)
    return 1 - (calls.seconds - before) / clock.seconds


def resnet9_config(options):
    """Returns the config of a short ResNet-9 run on synthetic images."""
    config = config_lib.default()
    config.data.name = "synthetic"
    config.data.image_size = options.size
    config.global_batch_size = options.batch
    # A fifth is left to test, a tenth of the rest to validate.
    config.data.num_examples = int(options.steps * options.batch / 0.72)
    config.data.augment.crop_padding = 2
    config.data.augment.flip = True
    config.duration = f"{options.epochs}ep"
    config_lib.check(config)
    return config


class Tiny:
    """A model of one dense layer and one batch, again and again."""

    def __init__(self, options):
        self.options = options
        random = np.random.default_rng(0)
        images = random.integers(0, 256, (32, 4, 4, 1), dtype=np.uint8)
        labels = random.integers(0, 2, 32)
        kept = source.from_arrays(images, labels, ("a", "b"))
        batch = images[:8].astype(np.float32), labels[:8].astype(np.int32)
        self.data = OneBatch(kept, 0, 8, batch=batch)
        inputs = keras.Input((4, 4, 1))
        outputs = keras.layers.Dense(2)(keras.layers.Flatten()(inputs))
        self.model = keras.Model(inputs, outputs)
        self.config = config_lib.default()
        self.config.global_batch_size = 8

    def compile(self, k: int = 1) -> keras.Model:
        """Returns the model, compiled anew."""
        self.model.compile(
            keras.optimizers.SGD(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            steps_per_execution=k,
            jit_compile=False,
        )
        return self.model

    def ours(self, *added) -> float:
        """Returns our loop's steps a second."""
        total = self.options.tiny_steps
        length = plan.Plan(total, Fraction(total), log_steps=50)
        strategy = tf.distribute.get_strategy()
        setup = assembly.Setup(
            strategy, self.compile(), length, self.data, None, None, step.Options(), None
        )
        clock = Clock(4 * self.options.k)
        with tempfile.TemporaryDirectory() as folder:
            fit_ours(setup, self.config, Path(folder), clock, *added)
        return clock.steps_per_second

    def keras(self, k: int) -> float:
        """Returns the steps a second of Keras's own fit."""
        clock = Clock(4 * self.options.k)
        self.compile(k).fit(
            self.data.dataset(),
            epochs=1,
            steps_per_epoch=self.options.tiny_steps,
            callbacks=[clock],
            verbose=0,
        )
        return clock.steps_per_second


@dataclasses.dataclass(frozen=True)
class OneBatch(pipeline.TrainingData):
    """Hands out one batch, so that the input costs next to nothing."""

    batch: tuple = ()

    def dataset(self, first_step=0, shard=None):
        """Returns the batch, without end."""
        return tf.data.Dataset.from_tensors(self.batch).repeat()


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=32, help="ResNet-9: pixels a side")
    parser.add_argument("--batch", type=int, default=64, help="ResNet-9: batch")
    parser.add_argument("--steps", type=int, default=30, help="ResNet-9: steps an epoch")
    parser.add_argument("--epochs", type=int, default=2, help="ResNet-9: epochs")
    parser.add_argument("--tiny_steps", type=int, default=10_000, help="tiny model: steps")
    parser.add_argument("--k", type=int, default=50, help="tiny model: steps a call")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    devices.configure()
    tiny = Tiny(options)
    variants = {
        "ours": lambda: tiny.ours(),
        "ours, k": lambda: tiny.ours(Cut(options.k)),
        "fit": lambda: tiny.keras(1),
        "fit, k": lambda: tiny.keras(options.k),
    }
    speeds = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, measure in variants.items():
            speeds[name].append(measure())
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, value in medians.items():
        print(f"{name:<8} {value:8.0f} steps/s")
    config, calls = resnet9_config(options), CallClock()
    shares = [outside_share(options, config, calls) for _ in range(options.rounds)]
    outside = statistics.median(shares)
    ratios = {
        "ours / fit": medians["ours"] / medians["fit"],
        "ours, k / fit, k": medians["ours, k"] / medians["fit, k"],
    }
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}")
    print(f"outside of the compiled calls: {100 * outside:.2f} % of a ResNet-9 run")
    if options.json:
        batches = f"batch {options.batch}, {options.epochs} x {options.steps} steps"
        name = f"loop overhead: k {options.k}; ResNet-9 {options.size} px, {batches}"
        found = {**medians, "outside": outside}
        results.write_measured(options.json, name, devices.describe(), found, ratios)


if __name__ == "__main__":
    main()
