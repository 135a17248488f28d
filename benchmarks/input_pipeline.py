"""Images a second through augmentation: tfaccel, tf.image image by image, Keras layers.

    python benchmarks/input_pipeline.py --json=input_pipeline.json
    python benchmarks/input_pipeline.py --tasks crop_flip randaugment --rounds=9

All sides start from the same uint8 images in memory, shuffle them anew every epoch,
let batches straddle two epochs, draw anew for each example, map with AUTOTUNE,
prefetch, and hand over float32 images, normalised, with whole-number labels. They
take turns within one process, so that a machine whose speed drifts treats them
alike; ratios are of the medians over the rounds. tfaccel's side is the product:
`TrainingData.dataset()` as `tfaccel.train` builds it.
"""

import argparse
import statistics
import time
from pathlib import Path

import keras
import numpy as np

from tfaccel import devices, results
from tfaccel.data import augment, mixing, normalize, pipeline, sources
from tfaccel.lazy import tf

TASKS = (
    "crop_flip",
    "randaugment",
    "erasing",
    "color_jitter",
    "resized_crop",
    "mixup",
    "cutmix",
    "trivialaugment",
    "cutout",
)


def tasks(size: int) -> dict[str, dict]:
    """Returns what is measured: for each task our builders and the Keras layers."""
    pad, layers = size // 8, keras.layers
    return {
        "crop_flip": {
            "ours": [augment.build(crop_padding=pad, flip=True)],
            "keras": [
                layers.ZeroPadding2D(pad),
                layers.RandomCrop(size, size),
                layers.RandomFlip("horizontal"),
            ],
        },
        "randaugment": {
            "ours": [augment.randaugment.build(number=2, magnitude=0.5)],
            "keras": [layers.RandAugment(num_ops=2, factor=0.5)],
        },
        "erasing": {
            "ours": [augment.erasing.build(probability=1.0)],
            "keras": [layers.RandomErasing(factor=1.0, fill_value=128)],
        },
        "color_jitter": {
            "ours": [
                augment.color_jitter.build(
                    brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1
                )
            ],
            "keras": [
                layers.RandomColorJitter(
                    brightness_factor=0.4,
                    contrast_factor=0.4,
                    saturation_factor=(0.3, 0.7),
                    hue_factor=0.1,
                )
            ],
        },
        "resized_crop": {
            "ours": [augment.resized_crop.build(smallest_area=0.25)],
            # The nearest that Keras has: a random zoom at a random place.
            "keras": [
                layers.RandomZoom((-0.5, 0.0), (-0.5, 0.0)),
                layers.RandomTranslation(0.2, 0.2),
            ],
        },
        "mixup": {"mixing": mixing.build(mixup=0.2), "mixing_layer": layers.MixUp(0.2)},
        "cutmix": {"mixing": mixing.build(cutmix=1.0), "mixing_layer": layers.CutMix(1.0)},
        # Keras has no layers for these two.
        "trivialaugment": {"ours": [augment.trivialaugment.build(enabled=True)]},
        "cutout": {"ours": [augment.cutout.build(size=size // 2)]},
    }


def ours(source, options, to_float, task) -> tf.data.Dataset:
    """The product: a run's own training data."""
    steps = task.get("ours")
    chain = augment.chain(*steps) if steps else None
    return pipeline.TrainingData(
        source, 0, options.batch, chain, to_float, task.get("mixing"), jit=True
    ).dataset()


def without_jit(source, options, to_float, task) -> tf.data.Dataset:
    """The same without XLA."""
    steps = task.get("ours")
    chain = augment.chain(*steps) if steps else None
    return pipeline.TrainingData(
        source, 0, options.batch, chain, to_float, task.get("mixing")
    ).dataset()


def per_image(source, options, to_float, task) -> tf.data.Dataset:
    """tf.image, one image after the other; crop and flip only."""
    pad, (height, width, channels) = options.size // 8, source.image_shape

    def prepare(number, example):
        image, label = example
        seed = tf.stack([number, 0])
        image = tf.image.resize_with_crop_or_pad(image, height + 2 * pad, width + 2 * pad)
        image = tf.image.stateless_random_crop(image, [height, width, channels], seed)
        image = tf.image.stateless_random_flip_left_right(image, seed + 1)
        return to_float(image), label

    numbered = _shuffled(source).enumerate()
    return _batched(numbered.map(prepare, num_parallel_calls=tf.data.AUTOTUNE), options.batch)


def keras_layers(source, options, to_float, task) -> tf.data.Dataset:
    """Keras's preprocessing layers on whole batches."""
    augmenting = [*task.get("keras", []), task.get("mixing_layer")]
    classes = source.num_classes

    def prepare(images, labels):
        images = tf.cast(images, tf.float32)
        for layer in filter(None, augmenting):
            if layer is task.get("mixing_layer"):
                both = {"images": images, "labels": tf.one_hot(labels, classes)}
                both = layer(both, training=True)
                images, labels = both["images"], both["labels"]
            else:
                images = layer(images, training=True)
        return to_float(images), labels

    batches = _shuffled(source).batch(options.batch, drop_remainder=True)
    return batches.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _shuffled(source) -> tf.data.Dataset:
    examples = tf.data.Dataset.from_tensor_slices((source.images, source.labels))
    return examples.shuffle(10_000, seed=0).repeat()


def _batched(dataset, batch: int) -> tf.data.Dataset:
    return dataset.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def images_per_second(dataset, options) -> float:
    """Takes batches for the time of a turn, after as long a time that does not count.

    Only one pipeline exists at a time: those that wait for their turn would go on
    filling their buffers, in another's time, and begin their own with a stock.
    """
    iterator = iter(dataset)
    _taken(iterator, options.seconds)
    start = time.perf_counter()
    count = _taken(iterator, options.seconds)
    return count * options.batch / (time.perf_counter() - start)


def _taken(iterator, seconds: float) -> int:
    """Takes batches for some seconds; returns how many."""
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        next(iterator)
        count += 1
    return count


def measure(name: str, task: dict, source, options) -> dict[str, float]:
    """Returns the median speed of each side of a task."""
    to_float = normalize.build(lambda: normalize.channel_statistics(source))
    sides = {"tfaccel": ours, "tfaccel without jit": without_jit}
    if "keras" in task or "mixing_layer" in task:
        sides["Keras layers"] = keras_layers
    if name == "crop_flip":
        sides["tf.image"] = per_image
    datasets = {side: build(source, options, to_float, task) for side, build in sides.items()}
    speeds = {side: [] for side in datasets}
    for _ in range(options.rounds):
        for side, dataset in datasets.items():
            speeds[side].append(images_per_second(dataset, options))
    return {side: statistics.median(values) for side, values in speeds.items()}


def source_of(options) -> sources.Source:
    """Random images: what they show makes no difference to the speed."""
    random = np.random.default_rng(0)
    shape = (options.images, options.size, options.size, 3)
    images = random.integers(0, 256, shape, dtype=np.uint8)
    return sources.from_arrays(images, random.integers(0, 10, options.images))


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    devices.configure()
    source, known = source_of(options), tasks(options.size)
    speeds, ratios = {}, {}
    for name in options.tasks:
        for side, speed in measure(name, known[name], source, options).items():
            speeds[f"{name}: {side}"] = speed
            ratio = speeds[f"{name}: tfaccel"] / speed
            ratios[f"{name}: tfaccel / {side}"] = ratio
            print(f"{name:<14} {side:<20} {speed:10,.0f} images/s  tfaccel is {ratio:.1f} x")
    if options.json:
        name = f"input_pipeline: {options.size} px, batch {options.batch}"
        others = {k: v for k, v in ratios.items() if not k.endswith("/ tfaccel")}
        results.write_measured(options.json, name, devices.describe(), speeds, others)


if __name__ == "__main__":
    main()
