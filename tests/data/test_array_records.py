"""TFDS sets prepared as array_record: read by index, of any size."""

import shutil

import numpy as np
import pictures
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from test_pipeline import assert_same, batches

from tfaccel.data import pipeline, sources
from tfaccel.errors import UserError

NAMES = ["cat", "dog", "newt"]


def prepare(folder, splits, *, shape, form, labels=None):
    """Writes a prepared set; each split is a list of pictures' (height, width)."""
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=shape, encoding_format=form),
            "label": tfds.features.ClassLabel(names=NAMES),
        }
    )

    def examples(split, sizes):
        for i, (height, width) in enumerate(sizes):
            label = i % 3 if labels is None else labels[split]
            yield {"image": pictures.picture(height, width, seed=i), "label": label}

    signature = {"image": tf.TensorSpec(shape, tf.uint8), "label": tf.TensorSpec([], tf.int64)}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="mine",
        version="1.0.0",
        features=features,
        split_datasets={
            split: tf.data.Dataset.from_generator(
                lambda split=split, sizes=sizes: examples(split, sizes),
                output_signature=signature,
            )
            for split, sizes in splits.items()
        },
        data_dir=str(folder),
        file_format="array_record",
        disable_shuffling=True,
    )
    return folder


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    splits = {"train": [(16, 16)] * 10, "test": [(16, 16)] * 4}
    return prepare(tmp_path_factory.mktemp("fixed"), splits, shape=(16, 16, 3), form="png")


VARYING = [(24 + i, 40 - i) for i in range(8)]


@pytest.fixture(scope="module", params=["jpeg", "png"])
def varying(request, tmp_path_factory):
    splits = {"train": VARYING, "validation": VARYING[:3]}
    folder = tmp_path_factory.mktemp(request.param)
    return prepare(folder, splits, shape=(None, None, 3), form=request.param)


def load(folder, **options):
    options = {"validation_share": 0.0, **options}
    return sources.load(name="mine", dir=str(folder), **options)


def test_images_of_one_size_come_as_they_are(fixed):
    splits = load(fixed)
    assert [len(s) for s in (splits.train, splits.test)] == [10, 4]
    assert splits.train.class_names == tuple(NAMES)
    assert splits.train.image_shape == (16, 16, 3)
    images, labels = splits.train.fetch(tf.constant([7, 2], tf.int64))
    expected = [pictures.picture(16, 16, seed=i) for i in (7, 2)]
    np.testing.assert_array_equal(images, expected)
    assert labels.numpy().tolist() == [1, 2]


def test_validation_is_held_out_by_index(fixed):
    splits = load(fixed, validation_share=0.2)
    rows = np.concatenate([splits.train.rows, splits.validation.rows])
    assert len(splits.validation) == 2
    np.testing.assert_array_equal(np.sort(rows), np.arange(10))


def test_images_of_varying_size_are_cut_to_one(varying):
    splits = load(varying, image_size=12)
    assert splits.train.image_shape == splits.test.image_shape == (12, 12, 3)
    images, labels = splits.test.fetch(tf.range(3, dtype=tf.int64))
    assert labels.numpy().tolist() == [0, 1, 2]
    for i, (height, width) in enumerate(VARYING[:3]):
        side = round(min(height, width) * 0.875)
        top, left = (height - side) // 2, (width - side) // 2
        middle = pictures.picture(height, width, seed=i)[top : top + side, left : left + side]
        expected = tf.image.resize(middle, [12, 12], antialias=True).numpy()
        # JPEG loses some; whole numbers are within a half of the others.
        allowed = 8 if "jpeg" in varying.name else 0.5
        assert np.abs(images[i].numpy() - expected).mean() < allowed


def test_default_size_is_224(varying):
    assert load(varying).train.image_shape == (224, 224, 3)


@pytest.mark.parametrize("step", [0, 2])
def test_batches_are_a_function_of_the_step(varying, step):
    data = pipeline.TrainingData(load(varying, image_size=12).train, 1, 3)
    expected = batches(data.dataset(), 5)
    assert_same(batches(data.dataset(step), 3), expected[step : step + 3])
    assert not np.array_equal(expected[0][0], expected[1][0])


def test_a_split_without_labels_is_left_out(tmp_path, log):
    splits = {"train": [(16, 16)] * 6, "validation": [(16, 16)] * 2, "test": [(16, 16)] * 3}
    labels = {"train": 1, "validation": 2, "test": -1}
    prepare(tmp_path, splits, shape=(16, 16, 3), form="png", labels=labels)
    assert len(load(tmp_path).test) == 2
    assert any("test split of mine has no labels" in message for message in log.messages)


def test_a_damaged_file_is_refused_in_a_line(fixed, tmp_path):
    shutil.copytree(fixed, tmp_path / "copy")
    (path,) = (tmp_path / "copy").rglob("*-train.array_record-*")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="mine") as error:
        load(tmp_path / "copy").train.fetch(tf.constant([1], tf.int64))
    assert "\n" not in str(error.value)


def test_records_files_without_random_access_say_how_to_get_it(tmp_path):
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=NAMES),
        }
    )
    images = tf.data.Dataset.from_tensor_slices(
        {"image": np.zeros((3, 8, 8, 3), np.uint8), "label": [0, 1, 2]}
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name="mine", version="1.0.0", features=features, split_datasets={"train": images},
        data_dir=str(tmp_path),
    )  # fmt: skip
    with pytest.raises(UserError, match="tfds build mine --file_format=array_record"):
        load(tmp_path)
