"""What a mask update costs, beside a training step of the same model.

    python benchmarks/pruning.py --model=resnet50 --size=32 --batch=32 --json=pruning.json

Steps and updates take turns, so that a machine whose speed drifts treats them alike;
medians over the rounds and their ratios to a step are printed. "callback" is what the
pruner takes outside the compiled call where no update is due.
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
    """A model that trains and is pruned, one step or one update at a time."""

    def __init__(self, options):
        source = sources.load(name="synthetic", image_size=options.size).train
        model = registry.build(source.image_shape, 10, name=options.model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        # An update at each even step, and more of them than there will be rounds.
        length = plan.Plan(4 * options.rounds + 4, Fraction(options.rounds))
        self.pruner = pruning.prune(
            model,
            length,
            final_sparsity=0.8,
            begin="2st",
            end="100%",
            frequency="2st",
            threshold=options.threshold,
        )
        self.model = model
        self.step = step.TrainingStep(model, tf.distribute.get_strategy())
        self.iterator = iter(pipeline.TrainingData(source, 0, options.batch).dataset())
        self.step(self.iterator, 1)

    def train(self) -> float:
        """Returns the seconds of a step."""
        start = time.perf_counter()
        self.step(self.iterator, 1)
        self.model.get_metrics_result()["loss"].numpy()
        return time.perf_counter() - start

    def callback(self) -> float:
        """Returns the seconds the pruner takes around a call."""
        start = time.perf_counter()
        self.pruner.on_train_batch_begin(self.pruner.step)
        self.pruner.on_train_batch_end(self.pruner.step)
        return time.perf_counter() - start


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
    training = Training(options)
    seconds = {"step": [], "callback": [], "mask update": []}
    for _ in range(options.rounds):
        seconds["step"].append(training.train())
        seconds["callback"].append(training.callback())
        seconds["mask update"].append(training.callback())
    assert training.pruner.done == options.rounds, "an update was missed"
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {name: value / medians["step"] for name, value in medians.items()}
    for name, value in medians.items():
        print(f"{name:<12} {1000 * value:10.3f} ms  {ratios[name]:.5f} x a step")
    if options.json:
        content = {
            "name": f"pruning: {options.model}, {options.size} px, batch {options.batch}",
            "hardware": devices.describe(),
            "versions": results.versions(),
            "results": medians,
            "ratios": ratios,
        }
        results.write_json(options.json, content)


if __name__ == "__main__":
    main()
