"""What a mask update costs, beside a training step of the same model.

    python benchmarks/pruning.py --model=resnet50 --size=32 --batch=32 --json=pruning.json

Steps and updates take turns, so that a machine whose speed drifts treats them alike;
medians over the rounds and their ratios to a step of the model without pruning are
printed. "callback" is what the pruner takes outside the compiled call where no update
is due.
"""

import argparse
import statistics
import time
from fractions import Fraction
from pathlib import Path

import keras

from tfaccel import devices, plan, pruning, results, step
from tfaccel.data import pipeline, sources
from tfaccel.lazy import tf
from tfaccel.models import registry


class Training:
    """A model that trains one step at a time, pruned or not."""

    def __init__(self, options, pruned: bool):
        source = sources.load(name="synthetic", image_size=options.size).train
        self.model = registry.build(source.image_shape, 10, name=options.model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        self.pruner = self._pruner(options) if pruned else None
        self.step = step.TrainingStep(self.model, tf.distribute.get_strategy())
        self.iterator = iter(pipeline.TrainingData(source, 0, options.batch).dataset())
        self.train()

    def train(self) -> float:
        """Returns the seconds of a step."""
        start = time.perf_counter()
        self.step(self.iterator, 1)
        self.model.get_metrics_result()["loss"].numpy()
        return time.perf_counter() - start

    def callback(self) -> float:
        """Returns the seconds the pruner takes around a call; it updates at even steps."""
        start = time.perf_counter()
        self.pruner.on_train_batch_begin(self.pruner.step)
        self.pruner.on_train_batch_end(self.pruner.step)
        return time.perf_counter() - start

    def _pruner(self, options):
        length = plan.Plan(2 * options.rounds + 2, Fraction(1))
        when = {"begin": "2st", "end": "100%", "frequency": "2st"}
        return pruning.prune(
            self.model, length, final_sparsity=0.8, threshold=options.threshold, **when
        )


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threshold", default="layer", choices=["layer", "global"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    devices.configure()
    dense, pruned = Training(options, pruned=False), Training(options, pruned=True)
    turns = {
        "step": dense.train,
        "pruned step": pruned.train,
        "callback": pruned.callback,
        "mask update": pruned.callback,
    }
    seconds = {name: [] for name in turns}
    for _ in range(options.rounds):
        for name, turn in turns.items():
            seconds[name].append(turn())
    assert pruned.pruner.done == options.rounds, "an update was missed"
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {name: value / medians["step"] for name, value in medians.items()}
    for name, value in medians.items():
        print(f"{name:<12} {1000 * value:10.3f} ms  {ratios[name]:.5f} x a step")
    if options.json:
        name = f"pruning: {options.model}, {options.size} px, batch {options.batch}"
        results.write_measured(options.json, name, devices.describe(), medians, ratios)


if __name__ == "__main__":
    main()
