"""What a second worker gains, and what a reduction costs.

    python benchmarks/scaling.py --rounds=10 --json=scaling.json

Weak scaling: two workers, each pinned to a CPU core and with a batch of its own size,
against one worker on one core; and against two that do not know of each other, which
is all that the machine's two cores give. Slices of a few steps take turns, so that a
machine whose speed drifts treats all alike; the efficiency is the ratio of times, with
its 95 % interval over the rounds. Then the time of one all-reduce by message size:
between the two workers, and between two logical devices by each of mirrored's ways.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from scipy import stats

from tfaccel import devices, distribution, results, step
from tfaccel.launch import environment
from tfaccel.lazy import keras, tf

SIZES = (1_000, 100_000, 1_000_000, 10_000_000)
WAYS = ("auto", "reduction_to_one_device", "hierarchical_copy")


class Worker:
    """A process of this file that does as it is told, on one core or on all."""

    def __init__(self, options, core: int | None = None, told=(), way: str = ""):
        command = [sys.executable, __file__, "--serve", f"--way={way}"]
        command += [f"--model={options.model}", f"--batch={options.batch}"]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        threads = {} if core is None else {"OMP_NUM_THREADS": "1", "TFACCEL_CPUS": "1"}
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **dict(told), **threads, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request) -> None:
        """Sends a request; `answer` waits for what comes of it."""
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> float:
        """Returns the seconds that the request took."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker has ended; its error is above")
        return json.loads(line)

    def end(self) -> None:
        """Lets the process end."""
        self.process.stdin.close()
        self.process.wait()


def slowest(workers: list[Worker], **request) -> float:
    """Returns the seconds that a request takes on all of them at once."""
    for worker in workers:
        worker.ask(**request)
    return max(worker.answer() for worker in workers)


def serve(options) -> None:
    """A worker: answers requests until its input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    devices.configure()
    if options.way:
        strategy = distribution.build(
            strategy="mirrored", logical_cpus=2, all_reduce=options.way
        )
    else:
        strategy = distribution.build(strategy="auto", timeout=600)
    training = iterator = None
    for line in sys.stdin:
        request = json.loads(line)
        if "bytes" in request:
            seconds = _reduce(strategy, request["bytes"], request["count"])
        else:
            if training is None:
                training, iterator = _training(strategy, options)
            seconds = _steps(training, iterator, request["count"])
        print(json.dumps(seconds), file=answers, flush=True)


def _training(strategy, options):
    from tfaccel.data import pipeline, sources
    from tfaccel.models import registry

    source = sources.load(name="synthetic").train
    with strategy.scope():
        model = registry.build(source.image_shape, 10, name=options.model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, auto_scale_loss=False)
    batch = options.batch * strategy.num_replicas_in_sync
    data = pipeline.TrainingData(source, 0, batch)
    training = step.TrainingStep(model, strategy)
    replicas = training.replicas
    return training, replicas.iterator(replicas.dataset(lambda shard: data.dataset(0, shard)))


def _steps(training, iterator, count: int) -> float:
    start = time.perf_counter()
    float(training(iterator, count).metrics["loss"])
    return time.perf_counter() - start


def _reduce(strategy, size: int, count: int) -> float:
    """Returns the seconds of one all-reduce, the mean of `count` one after the other."""
    options = distribution.communication_options(strategy)

    def reduce():
        def replica():
            # Random, as TensorFlow reckons the sum of constants once and for all.
            value = tf.fill([size // 4], tf.random.uniform([]))
            for _ in range(count):
                context = tf.distribute.get_replica_context()
                value = context.all_reduce(tf.distribute.ReduceOp.MEAN, value, options)
            return value[0]

        return strategy.run(replica)

    reduced = tf.function(reduce)
    strategy.experimental_local_results(reduced())[0].numpy()
    start = time.perf_counter()
    strategy.experimental_local_results(reduced())[0].numpy()
    return (time.perf_counter() - start) / count


def efficiency(alone: list[float], together: list[float]) -> dict[str, float]:
    """Returns the mean ratio of times, and its 95 % interval."""
    ratios = [one / two for one, two in zip(alone, together, strict=True)]
    mean, error = statistics.mean(ratios), stats.sem(ratios)
    margin = float(stats.t.ppf(0.975, len(ratios) - 1) * error)
    return {"mean": mean, "low": mean - margin, "high": mean + margin}


def scaling(options, pair: list[Worker]) -> tuple[dict, dict]:
    """Returns (median seconds a slice, efficiencies) with the slices in turn."""
    singles = [Worker(options, core) for core in range(2)]
    groups = {"one": singles[:1], "two apart": singles, "two together": pair}
    for workers in groups.values():
        slowest(workers, count=1)
    seconds = {name: [] for name in groups}
    for _ in range(options.rounds):
        for name, workers in groups.items():
            seconds[name].append(slowest(workers, count=options.steps))
    for worker in singles:
        worker.end()
    ratios = {
        f"two together, of {name}": efficiency(seconds[name], seconds["two together"])
        for name in ("one", "two apart")
    }
    return {name: statistics.median(values) for name, values in seconds.items()}, ratios


def reductions(options, pair: list[Worker]) -> dict[str, float]:
    """Returns the seconds of one all-reduce by way and size; prints them as they come."""
    found = {}

    def measure(name, workers):
        for size in SIZES:
            seconds = found[f"{name}, {size} bytes"] = slowest(workers, bytes=size, count=10)
            speed = size / seconds / 1e6
            print(f"{name:<35} {size:>10} bytes {1e3 * seconds:8.2f} ms {speed:9.1f} MB/s")
            sys.stdout.flush()

    measure("workers, ring", pair)
    for way in WAYS:
        worker = Worker(options, way=way)
        measure(f"mirrored, {way}", [worker])
        worker.end()
    return found


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet9")
    parser.add_argument("--batch", type=int, default=32, help="examples a worker and step")
    parser.add_argument("--steps", type=int, default=2, help="steps a slice")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    told = environment.tf_configs(environment.addresses([], 2, 0), 0, 2)
    pair = [Worker(options, core, others) for core, others in enumerate(told)]
    seconds, ratios = scaling(options, pair)
    for name, value in seconds.items():
        print(f"{name:<16} {value:8.3f} s a slice of {options.steps} steps")
    for name, value in ratios.items():
        interval = f"95 %: {value['low']:.3f} to {value['high']:.3f}"
        print(f"{name}: {value['mean']:.3f} ({interval})", flush=True)
    costs = reductions(options, pair)
    for worker in pair:
        worker.end()
    if options.json:
        name = f"scaling: {options.model}, batch {options.batch} a worker"
        found = {"slice_seconds": seconds, "all_reduce_seconds": costs}
        results.write_measured(options.json, name, devices.describe(), found, ratios)


if __name__ == "__main__":
    main()
