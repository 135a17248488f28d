"""Class folders as sources: pixels, crops, batches, and what cannot be read."""

import io

import numpy as np
import pictures
import pytest
import tensorflow as tf
from PIL import Image
from test_pipeline import assert_same, batches, strategy_batches

from tfaccel.data import decode, image_index, mixing, pipeline, sources
from tfaccel.data.augment.boxes import random_resized_boxes
from tfaccel.data.source import read_errors
from tfaccel.errors import UserError

pytestmark = pytest.mark.usefixtures("own_cache")

ALL_KINDS = (image_index.JPEG, image_index.PNG, image_index.BMP, image_index.PILLOW)


def load(folder, **options):
    return sources.load(name="folder", dir=str(folder), **options)


def training(source, batch=4, seed=3, **options):
    return pipeline.TrainingData(source, seed, batch, **options)


def by_pillow(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


# Decoding.


@pytest.mark.parametrize("form", pictures.FORMS)
def test_pixels_equal_those_of_pillow(form, tmp_path):
    path = pictures.write(tmp_path / form, form=form)
    kind, _, _ = image_index.read_header(path)
    pixels = decode.whole(str(path), kind, ALL_KINDS).numpy()
    assert (pixels.dtype, pixels.shape) == (np.uint8, (40, 56, 3))
    # The way from four colours to three is rounded in another place.
    allowed = 5 if form == "cmyk.jpg" else 0
    assert np.abs(pixels.astype(int) - by_pillow(path)).max() <= allowed


def test_the_first_frame_of_an_animation_is_taken(tmp_path):
    frames = [Image.fromarray(pictures.picture(seed=seed)) for seed in range(3)]
    path = tmp_path / "moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    pixels = decode.whole(str(path), image_index.PILLOW, ALL_KINDS)
    np.testing.assert_array_equal(pixels, by_pillow(path))
    still = np.asarray(frames[0].quantize().convert("RGB")).astype(int)
    # A palette of 256 colours stands for a smooth picture.
    assert np.abs(pixels.numpy() - still).mean() < 8


def resized(pixels, size):
    return tf.image.resize(pixels, [size, size], antialias=True).numpy()


@pytest.mark.parametrize("form", ["colour.jpg", "colour.png", "colour.bmp", "colour.webp"])
def test_a_part_is_that_part_of_the_whole(form, tmp_path):
    path = pictures.write(tmp_path / form, 60, 80, form=form)
    kind, _, _ = image_index.read_header(path)
    part = decode.part(str(path), kind, tf.constant([7, 11, 30, 40]), 16, ALL_KINDS)
    whole = decode.whole(str(path), kind, ALL_KINDS)
    assert (part.dtype, part.shape) == (tf.uint8, (16, 16, 3))
    expected = resized(whole[7:37, 11:51], 16)
    # A JPEG is reduced without a filter as wide, which these smooth pictures hardly show.
    allowed = 12 if form == "colour.jpg" else 0.5 + 1e-3
    assert np.abs(part.numpy() - expected).max() <= allowed


@pytest.mark.parametrize("times", [1, 2, 4, 8])
def test_a_large_jpeg_is_decoded_in_a_part_of_its_size(times):
    content = pictures.encode(pictures.picture(32 * times, 48 * times), "colour.jpg")
    box = tf.constant([8 * times, 16 * times, 16 * times, 24 * times])
    part = decode.jpeg_part(content, box, 16).numpy().astype(float)
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    expected = resized(pixels[8 * times : 24 * times, 16 * times : 40 * times], 16)
    # The scaled decoder averages blocks; the edge of a part may differ by a pixel.
    assert np.abs(part - expected).mean() < 3


def test_evaluation_shows_the_middle():
    box = decode.boxes(tf.constant([256, 100]), tf.constant([512, 64]), None, 0.08)
    np.testing.assert_array_equal(box, [[16, 144, 224, 224], [22, 4, 56, 56]])


# What a folder becomes.


def test_splits_classes_and_labels(tmp_path):
    pictures.write_classes(tmp_path / "train", ("cat", "dog", "newt"), 10)
    pictures.write_classes(tmp_path / "test", ("dog", "newt"), 2)
    splits = load(tmp_path, validation_share=0.2)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [24, 6, 4]
    assert splits.train.class_names == splits.test.class_names == ("cat", "dog", "newt")
    assert splits.test.class_counts().tolist() == [0, 2, 2]
    images, labels = splits.test.fetch(tf.range(4, dtype=tf.int64))
    assert labels.numpy().tolist() == [1, 1, 2, 2]
    paths = [splits.test.files.path(row) for row in splits.test.rows]
    np.testing.assert_array_equal(images, np.stack([by_pillow(path) for path in paths]))


def test_a_folder_of_its_own_for_validation_is_taken(tmp_path):
    for split, count in (("train", 5), ("val", 2), ("test", 1)):
        pictures.write_classes(tmp_path / split, count=count)
    splits = load(tmp_path, validation_share=0.5)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [10, 4, 2]
    assert load(tmp_path, validation_share=0.0).validation is None


def test_without_test_folder_a_fifth_is_held_out(tmp_path):
    splits = load(pictures.write_classes(tmp_path, count=10))
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [14, 2, 4]
    rows = np.concatenate([splits.train.rows, splits.validation.rows, splits.test.rows])
    np.testing.assert_array_equal(np.sort(rows), np.arange(20))


@pytest.mark.parametrize(
    ("size", "image_size", "shape", "whole"),
    [
        ((16, 16), None, (16, 16, 3), True),
        ((16, 24), None, (16, 24, 3), True),
        ((16, 16), 16, (16, 16, 3), True),
        ((16, 16), 12, (12, 12, 3), False),
        (None, 12, (12, 12, 3), False),
        (None, None, (224, 224, 3), False),
    ],
)
def test_size_that_images_come_in(tmp_path, size, image_size, shape, whole):
    source = load(pictures.write_classes(tmp_path, size=size), image_size=image_size).train
    assert source.image_shape == shape
    assert (source.size is None) == whole
    images, _ = source.fetch(tf.constant([0], tf.int64), tf.constant([5], tf.uint32))
    assert images.shape == (1, *shape)
    if whole:
        np.testing.assert_array_equal(images[0], by_pillow(source.files.path(source.rows[0])))


def test_training_cuts_what_the_example_s_key_says(tmp_path):
    source = load(pictures.write_classes(tmp_path, size=None), image_size=8).train
    examples, keys = tf.range(4, dtype=tf.int64), tf.constant([9, 99, 999, 9999], tf.uint32)
    images, _ = source.fetch(examples, keys)
    whole = [by_pillow(source.files.path(row)) for row in source.rows[:4]]
    heights, widths = zip(*(image.shape[:2] for image in whole), strict=True)
    boxes = tf.stack(random_resized_boxes(keys, heights, widths), axis=1).numpy()
    for got, image, (top, left, height, width) in zip(images, whole, boxes, strict=True):
        expected = resized(image[top : top + height, left : left + width], 8)
        assert np.abs(got.numpy() - expected).max() <= 0.5 + 1e-3


def test_crop_area_1_shows_the_middle_in_training(tmp_path):
    folder = pictures.write_classes(tmp_path, size=None)
    source = load(folder, image_size=8, crop_area=1.0).train
    examples = tf.range(3, dtype=tf.int64)
    np.testing.assert_array_equal(
        source.fetch(examples, tf.constant([1, 2, 3], tf.uint32))[0], source.fetch(examples)[0]
    )


# Batches: a pure function of seed and step, as those from memory.


@pytest.fixture
def source(tmp_path):
    """Eleven files of several kinds and sizes."""
    pictures.write_classes(tmp_path / "train", size=None, ending=".jpg", count=4)
    pictures.write_classes(tmp_path / "train", ("cat",), size=None, count=3)
    pictures.write_classes(tmp_path / "test", count=1)
    return load(tmp_path, image_size=12, validation_share=0.0).train


@pytest.fixture
def expected(source):
    return batches(training(source).dataset(), 7)


def test_batch_holds_the_examples_of_its_places(source, expected):
    data = training(source)
    places = tf.range(28, dtype=tf.int64)
    examples, keys = data._wanted(places)
    images, labels = source.fetch(examples, keys)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in expected]), images)
    np.testing.assert_array_equal(np.concatenate([y for _, y in expected]), labels)
    assert np.bincount(examples[:11], minlength=11).tolist() == [1] * 11


@pytest.mark.parametrize("replicas", [2, 4])
def test_batches_do_not_depend_on_the_replicas(source, expected, replicas):
    data = training(source)
    assert_same(strategy_batches(lambda s: data.dataset(0, s), replicas, 7), expected)


def test_mixed_batches_do_not_depend_on_the_replicas(source):
    data = training(source, mixing=mixing.build(mixup=0.4))
    got = strategy_batches(lambda s: data.dataset(0, s), 2, 4)
    assert_same(got, batches(data.dataset(), 4))


@pytest.mark.parametrize("threads", [1, 8])
def test_batches_do_not_depend_on_the_threads(source, expected, threads):
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    assert_same(batches(training(source).dataset().with_options(options), 7), expected)


@pytest.mark.parametrize("step", [1, 3])
def test_restart_goes_on_with_the_same_batches(source, expected, step):
    assert_same(batches(training(source).dataset(step), 2), expected[step : step + 2])


def test_static_shapes_and_no_end(source):
    dataset = training(source).dataset()
    assert dataset.element_spec == (
        tf.TensorSpec([4, 12, 12, 3], tf.uint8),
        tf.TensorSpec([4], tf.int32),
    )
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


def test_evaluation_sees_every_file_once(source):
    data = pipeline.EvaluationData(source, 4)
    got = batches(data.dataset(), data.steps)
    assert np.concatenate([w for *_, w in got]).tolist() == [1.0] * 11 + [0.0]
    images, labels = source.fetch(tf.range(11, dtype=tf.int64))
    np.testing.assert_array_equal(np.concatenate([x for x, *_ in got])[:11], images)
    np.testing.assert_array_equal(np.concatenate([y for _, y, _ in got])[:11], labels)


# Files that cannot be read.


def with_bad(folder, damage, name="cat/2.jpg"):
    pictures.write_classes(folder / "train", size=None, ending=".jpg")
    pictures.write_classes(folder / "test", count=1)
    damage(folder / "train" / name)
    return folder


def empty(path):
    path.write_bytes(b"")


def read_an_epoch(source):
    with read_errors():
        return batches(training(source).dataset(), 3)


def test_an_empty_file_is_named_at_once(tmp_path):
    folder = with_bad(tmp_path, empty)
    with pytest.raises(UserError) as error:
        load(folder, image_size=8)
    assert str(error.value) == (
        f"{folder}/train/cat/2.jpg cannot be read (it is empty): delete or mend it, or go on "
        "without it by --config.data.on_bad_image=skip."
    )


def test_a_damaged_file_is_named_when_it_is_read(tmp_path):
    folder = with_bad(tmp_path, pictures.cut_short)
    source = load(folder, image_size=8, crop_area=0.9, validation_share=0.0).train
    with pytest.raises(UserError) as error:
        read_an_epoch(source)
    message = str(error.value)
    assert message.startswith(f"{folder}/train/cat/2.jpg cannot be read (image file is trunc")
    assert "on_bad_image=skip" in message
    assert "\n" not in message


@pytest.mark.parametrize("damage", [empty, pictures.cut_short])
def test_a_skipped_file_is_told_once_and_another_takes_its_place(tmp_path, damage, log):
    folder = with_bad(tmp_path, damage)
    options = {"image_size": 8, "crop_area": 0.9, "validation_share": 0.0}
    source = load(folder, on_bad_image="skip", **options).train
    first, second = read_an_epoch(source), read_an_epoch(source)
    assert_same(first, second)
    (warning,) = [m for m in log.messages if "cannot be read" in m]
    assert "train/cat/2.jpg" in warning
    assert "(1 so far)" in warning
    assert len(source.bad.reasons) == 1
    # Nothing else changes: a healthy folder gives the same other examples.
    pictures.write_classes(folder / "train", size=None, ending=".jpg")
    healthy = read_an_epoch(load(folder, **options).train)
    examples = training(source)._wanted(tf.range(12, dtype=tf.int64))[0].numpy()
    bad = [str(source.files.path(source.rows[e])).endswith("cat/2.jpg") for e in examples]
    assert sum(bad) == 1
    got, want = (np.concatenate([x for x, _ in part]) for part in (first, healthy))
    same = (got == want).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(same, np.logical_not(bad))


def test_a_folder_in_which_nothing_can_be_read_is_refused(tmp_path):
    folder = pictures.write_classes(tmp_path, ending=".jpg", count=4)
    for path in folder.rglob("*.jpg"):
        pictures.cut_short(path)
    source = load(folder, on_bad_image="skip", validation_share=0.0).train
    with pytest.raises(UserError, match=r"cannot be read .*, and 7 other\(s\) neither"):
        read_an_epoch(source)


def test_other_errors_keep_their_form():
    with pytest.raises(tf.errors.InvalidArgumentError), read_errors():
        tf.io.decode_jpeg(b"no image")


def unknown_class(folder):
    pictures.write(folder / "test/newt/1.png")


def empty_class(folder):
    (folder / "train/newt").mkdir()


def no_test_images(folder):
    for path in (folder / "test").rglob("*.png"):
        path.rename(path.with_suffix(".txt"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unknown_class, "test holds images of the class 'newt', of which there are none"),
        (empty_class, r"no images to train on in the class folder\(s\) 'newt'"),
        (no_test_images, "test holds no images in its class folders"),
    ],
)
def test_classes_must_have_images_to_train_on(tmp_path, change, message):
    for split in ("train", "test"):
        pictures.write_classes(tmp_path / split, count=2)
    change(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_needs_a_name():
    with pytest.raises(
        UserError, match=r"data.name=folder without data.dir, expected --config"
    ):
        sources.load(name="folder")


def test_statistics_come_from_a_sample_in_memory(source):
    sample = source.sample(5)
    assert len(sample) == 5
    chosen = tf.constant([0, 2, 5, 7, 10], tf.int64)
    np.testing.assert_array_equal(sample.images, source.fetch(chosen)[0])
    assert len(source.sample(1000)) == 11
