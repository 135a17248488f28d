"""Training speed of a model with each lever, against the same model without.

    python benchmarks/levers.py --model=resnet9 --batch=64 --rounds=5 --json=levers.json

All variants live in one process and take turns, so that a machine whose speed
drifts treats them alike; ratios are of the medians over the rounds.
"""

import argparse
import statistics
import time
from pathlib import Path

import keras

from tfaccel import devices, precision, results, step
from tfaccel.data import pipeline, sources
from tfaccel.lazy import tf
from tfaccel.models import registry

VARIANTS = {
    "float32": {},
    "jit": {"jit": True},
    "accumulation=2": {"accumulation": 2},
    "mixed_bfloat16": {"policy": "mixed_bfloat16"},
}


class Variant:
    """A model with its step and its data."""

    def __init__(self, options, *, policy="float32", jit=False, accumulation=1):
        source = sources.load(name="synthetic", image_size=options.size).train
        with precision.scope(keras.DTypePolicy(policy)):
            model = registry.build(source.image_shape, 10, name=options.model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        strategy = tf.distribute.get_strategy()
        data = pipeline.TrainingData(source, 0, options.batch)
        self.step = step.TrainingStep(model, strategy, step.Options(jit, accumulation))
        self.iterator = iter(data.dataset())
        self.options = options
        self.step(self.iterator, 1)

    def images_per_second(self) -> float:
        """Runs a few steps."""
        start = time.perf_counter()
        self.step(self.iterator, self.options.steps)
        self.step.model.get_metrics_result()["loss"].numpy()
        return self.options.steps * self.options.batch / (time.perf_counter() - start)


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet9")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="steps a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    devices.configure()
    variants = {name: Variant(options, **VARIANTS[name]) for name in options.variants}
    speeds = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, variant in variants.items():
            speeds[name].append(variant.images_per_second())
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    base = medians[options.variants[0]]
    ratios = {name: value / base for name, value in medians.items()}
    for name, value in medians.items():
        print(f"{name:<16} {value:8.1f} images/s  {ratios[name]:.2f} x {options.variants[0]}")
    if options.json:
        name = f"levers: {options.model}, {options.size} px, batch {options.batch}"
        results.write_measured(options.json, name, devices.describe(), medians, ratios)


if __name__ == "__main__":
    main()
