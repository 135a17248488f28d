"""Input from JPEG files at 224 px: ours against Keras's own, and against bare decoding.

    python benchmarks/input_files.py --files=5000 --rounds=5 --json=input_files.json

The files are made here, about 500 x 375 pixels, from scikit-learn's two photographs. All
sides hand over float32 batches of one size, normalised, with a random part of each image
mirrored at random; they take turns, so that a machine whose speed drifts treats them
alike; ratios are of the medians over the rounds.

Keras has no random-resized-crop: its equivalent is RandomZoom (in, by each side's own
factor) with RandomTranslation. "keras crop" is what is often done instead, a crop of
fixed size, which is less work and less augmentation; it is measured for comparison.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from tfaccel import devices, randomness, results
from tfaccel.data import augment, normalize, pipeline, sources
from tfaccel.lazy import tf

SIZE = 224
MEAN, DEVIATION = np.float32([124, 116, 104]), np.float32([58, 57, 58])


def make_files(folder: Path, count: int) -> None:
    """Writes JPEGs of two classes, parts of two photographs of varying size and light."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    random, photographs = np.random.default_rng(0), load_sample_images().images
    for number in range(count):
        photograph = photographs[number % 2]
        height, width = random.integers(333, 418), random.integers(440, 561)
        top = random.integers(photograph.shape[0] - height + 1)
        left = random.integers(photograph.shape[1] - width + 1)
        part = photograph[top : top + height, left : left + width]
        path = folder / f"class {number % 2}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        light = random.uniform(0.7, 1.0)
        Image.fromarray((part * light).astype(np.uint8)).save(path, quality=90)


def ours(folder: Path, batch: int):
    """Our pipeline: the part is cut while decoding, the rest done for whole batches."""
    source = sources.load(
        name="folder", dir=str(folder), image_size=SIZE, validation_share=0.0
    ).train
    to_float = normalize.build(lambda: (MEAN, DEVIATION))
    return pipeline.TrainingData(
        source, 0, batch, augment.build(flip=True), to_float, jit=True
    ).dataset()


def bare_decoding(folder: Path, batch: int):
    """Reads and decodes the same parts of the same files, and does nothing else."""
    source = sources.load(
        name="folder", dir=str(folder), image_size=SIZE, validation_share=0.0
    ).train
    rows = tf.data.Dataset.from_tensor_slices(source.rows).repeat().batch(batch)

    def details(rows):
        found = source.details(rows, randomness.mix(0, rows))
        return found["path"], found["box"]

    def read(path, box):
        image = tf.image.decode_and_crop_jpeg(
            tf.io.read_file(path), box, channels=3, dct_method="INTEGER_ACCURATE"
        )
        return tf.reduce_max(image[:1, :1])  # Nothing large to copy.

    return (
        rows.map(details).unbatch().map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(batch)
    )


def of_keras(folder: Path, batch: int, size: int, layers: list):
    """image_dataset_from_directory and Keras layers, as Keras's guides put them together."""
    dataset = keras.utils.image_dataset_from_directory(
        folder, batch_size=batch, image_size=(size, size), verbose=False
    )
    layers = keras.Sequential([*layers, keras.layers.RandomFlip("horizontal")])
    last = keras.layers.Normalization(mean=MEAN, variance=DEVIATION**2)

    def finish(images, labels):
        return last(layers(images, training=True)), labels

    dataset = dataset.repeat().map(finish, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def keras_zoom(folder: Path, batch: int):
    """The equivalent of a random-resized-crop of 8 % to all of the area."""
    zoom = keras.layers.RandomZoom((-0.72, 0.0), (-0.72, 0.0))
    return of_keras(folder, batch, SIZE, [zoom, keras.layers.RandomTranslation(0.3, 0.3)])


def keras_crop(folder: Path, batch: int):
    """A crop of fixed size from images brought to 256 pixels: less than the others do."""
    return of_keras(folder, batch, 256, [keras.layers.RandomCrop(SIZE, SIZE)])


SIDES = {
    "ours": ours,
    "keras zoom": keras_zoom,
    "keras crop": keras_crop,
    "bare decoding": bare_decoding,
}


def images_per_second(dataset, batch: int, seconds: float) -> float:
    """Reads batches for some seconds, after one that fills the buffers."""
    iterator = iter(dataset)
    next(iterator)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(iterator)
        count += batch
    return count / (time.perf_counter() - start)


def main() -> None:
    """Measures and prints; writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a turn")
    parser.add_argument("--folder", type=Path, help="where to make the files, and keep them")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    devices.configure()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not any(folder.glob("*/*.jpg")):
            make_files(folder, options.files)
        medians = measure(folder, options)
    ratios = {
        "ours / keras zoom": medians["ours"] / medians["keras zoom"],
        "ours / keras crop": medians["ours"] / medians["keras crop"],
        "share of bare decoding in our time": medians["ours"] / medians["bare decoding"],
    }
    for name, value in medians.items():
        print(f"{name:<16} {value:9,.0f} images/s")
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}")
    if options.json:
        name = f"input files: {options.files} JPEGs, {SIZE} px, batch {options.batch}"
        results.write_measured(options.json, name, devices.describe(), medians, ratios)


def measure(folder: Path, options) -> dict[str, float]:
    """Returns the median images a second of each side."""
    speeds = {name: [] for name in SIDES}
    for _ in range(options.rounds):
        for name, build in SIDES.items():
            # Made anew in each turn: a side that waits would fill its buffers meanwhile.
            dataset = build(folder, options.batch)
            speeds[name].append(images_per_second(dataset, options.batch, options.seconds))
    return {name: statistics.median(values) for name, values in speeds.items()}


if __name__ == "__main__":
    main()
