import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from tfaccel import host, randomness
from tfaccel.data import sources
from tfaccel.errors import UserError

SPLITS = ("train", "validation", "test")


def refused(match, function, *args, **kwargs):
    """Asserts a UserError of one line and returns its text."""
    with pytest.raises(UserError, match=match) as error:
        function(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def arrays(count=6, shape=(4, 4, 3), classes=3):
    images = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    return images, np.arange(count) % classes


def sizes(splits):
    return [len(getattr(splits, name)) for name in SPLITS]


# Digits: 1,797 in all; a fifth to test on, a tenth of the rest to validate on.


def test_digits_are_the_default():
    splits = sources.load()
    assert sizes(splits) == [1294, 144, 359]
    for split in (splits.train, splits.validation, splits.test):
        assert split.image_shape == (32, 32, 3)
        assert split.images.dtype == np.uint8
        assert split.labels.dtype == np.int32
        assert split.num_classes == 10
        assert split.class_names == tuple("0123456789")
    index = np.concatenate([getattr(splits, name).index for name in SPLITS])
    np.testing.assert_array_equal(np.sort(index), np.arange(1797))


def test_digits_are_those_of_scikit_learn_four_times_as_large():
    source = sources.load().train
    np.testing.assert_array_equal(source.labels, load_digits().target)
    small = source.images[:, ::4, ::4]
    np.testing.assert_array_equal(source.images, small.repeat(4, axis=1).repeat(4, axis=2))
    # 0..16 becomes 0..255.
    np.testing.assert_array_equal(
        small, np.round(load_digits().images * 255 / 16)[..., None].repeat(3, -1)
    )


def test_no_validation_if_none_is_asked_for():
    splits = sources.load(validation_share=0.0)
    assert splits.validation is None
    assert (len(splits.train), len(splits.test)) == (1438, 359)


@pytest.mark.parametrize("share", [1.0, 0.9999, 1e-6])
def test_validation_share_that_leaves_nothing_is_refused(share):
    refused(r"validation.share.*expected", sources.load, validation_share=share)


# Synthetic.


def test_synthetic_images_are_made_to_measure():
    splits = sources.load(name="synthetic", image_size=8, num_classes=3, num_examples=100)
    assert sizes(splits) == [72, 8, 20]
    assert splits.train.image_shape == (8, 8, 3)
    assert splits.train.num_classes == 3


def test_synthetic_defaults():
    splits = sources.load(name="synthetic")
    assert sizes(splits) == [737, 82, 205]
    assert splits.train.image_shape == (32, 32, 3)
    assert splits.train.num_classes == 10


def test_synthetic_images_can_be_learnt_and_repeated():
    first, second = (sources.load(name="synthetic", num_examples=200).train for _ in range(2))
    np.testing.assert_array_equal(first.images, second.images)
    # The nearest of the classes' means names the class.
    means = np.stack([first.images[first.labels == c].mean(axis=0) for c in range(10)])
    distances = ((first.images[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    np.testing.assert_array_equal(distances.argmin(axis=1), first.labels)


@pytest.mark.parametrize("field", ["image_size", "num_classes", "num_examples"])
@pytest.mark.parametrize("name", ["digits", "npz", "cifar10"])
def test_only_synthetic_images_have_a_choice_of_size(name, field):
    refused(
        rf"data\.{field}=16 for data\.name={name}.*leave it out",
        sources.load,
        name=name,
        **{field: 16},
    )


@pytest.mark.parametrize(
    ("name", "image_size", "expected"),
    [
        ("digits", None, (32, 32, 3)),
        ("synthetic", None, (32, 32, 3)),
        ("synthetic", 64, (64, 64, 3)),
        ("cifar10", None, (32, 32, 3)),
        ("cifar10:3.0.2", None, (32, 32, 3)),
        ("mnist", None, (28, 28, 1)),
        ("npz", None, None),
    ],
)
def test_shape_known_before_the_data_are_read(name, image_size, expected):
    assert sources.known_shape(name, image_size) == expected


# The caller's own arrays.


def test_arrays_are_kept_as_they_are():
    images, labels = arrays()
    source = sources.from_arrays(images, labels, ("a", "b", "c"))
    assert (len(source), source.image_shape, source.num_classes) == (6, (4, 4, 3), 3)
    assert np.shares_memory(source.images, images)
    assert source.labels.dtype == np.int32
    np.testing.assert_array_equal(source.labels, labels)
    assert source.class_names == ("a", "b", "c")


def test_labels_in_a_column_and_grey_images_are_accepted():
    images, labels = arrays(shape=(4, 5))
    source = sources.from_arrays(images, labels[:, None])
    assert source.image_shape == (4, 5, 1)
    np.testing.assert_array_equal(source.images[..., 0], images)
    np.testing.assert_array_equal(source.labels, labels)


def test_largest_label_tells_the_number_of_classes():
    assert sources.from_arrays(arrays(2)[0], [0, 4]).class_names == tuple("01234")


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64])
def test_labels_of_any_integer_type_are_accepted(dtype):
    images, labels = arrays()
    source = sources.from_arrays(images, labels.astype(dtype))
    np.testing.assert_array_equal(source.labels, labels)


IMAGES, LABELS = arrays()


@pytest.mark.parametrize(
    ("images", "labels", "names", "message"),
    [
        (IMAGES / 255, LABELS, (), "images of dtype float64.*expected uint8"),
        (IMAGES.astype(np.int64), LABELS, (), "images of dtype int64.*expected uint8"),
        (IMAGES[0, 0], LABELS, (), r"shape \(4, 3\), expected uint8 \[n, height"),
        (IMAGES, LABELS[:5], (), r"shape \(5,\) for 6 images"),
        (IMAGES, np.eye(3)[LABELS][:5], (), r"labels.*shape \(5, 3\) for 6 images"),
        (IMAGES, LABELS.astype(float), (), "labels of dtype float64.*whole numbers"),
        (IMAGES, LABELS > 0, (), "labels of dtype bool.*whole numbers"),
        (IMAGES, LABELS - 1, (), "labels from -1 to 1, expected 0 to 1"),
        (IMAGES, LABELS, ("a", "b"), r"labels from 0 to 2, expected 0 to 1 \(2 classes\)"),
        (IMAGES[:0], LABELS[:0], (), "no images, expected at least one"),
    ],
    ids=[
        "float images",
        "wide images",
        "two dimensions",
        "too few labels",
        "too few one-hot labels",
        "float labels",
        "boolean labels",
        "negative label",
        "label beyond the classes",
        "empty",
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, names, message):
    refused(f"^mine: .*{message}", sources.from_arrays, images, labels, names, "mine")


def test_fetch_goes_by_the_index_of_the_subset():
    images, labels = arrays(20)
    source = sources.from_arrays(images, labels).subset(np.array([2, 3, 5, 7, 11]))
    inner = source.subset(np.array([4, 0, 2]))
    assert len(inner) == 3
    got_images, got_labels = inner.fetch(tf.constant([0, 2, 2, 1], tf.int64))
    np.testing.assert_array_equal(got_images, images[[11, 5, 5, 2]])
    np.testing.assert_array_equal(got_labels, labels[[11, 5, 5, 2]])


# Holding out.


def numbered(count):
    return sources.from_arrays(np.zeros((count, 1, 1, 1), np.uint8), np.zeros(count, int))


@pytest.mark.parametrize(
    ("count", "share", "held"), [(10, 0.3, 3), (1797, 0.2, 359), (2, 0.5, 1), (15, 0.1, 2)]
)
def test_parts_are_disjoint_and_together_everything(count, share, held):
    rest, part = sources.hold_out(numbered(count), share, "test")
    assert (len(rest), len(part)) == (count - held, held)
    together = np.sort(np.concatenate([rest.index, part.index]))
    np.testing.assert_array_equal(together, np.arange(count))


def test_choice_is_the_recorded_one():
    # Another choice would let a resumed run train on what it was validated with.
    chosen = {
        purpose: sources.hold_out(numbered(20), 0.25, purpose)[1].index.tolist()
        for purpose in ("validation", "test")
    }
    assert chosen == {"validation": [4, 5, 6, 11, 19], "test": [4, 7, 13, 17, 19]}


def test_choice_does_not_depend_on_the_seed():
    chosen = []
    for seed in (0, 1):
        randomness.set_seed(seed=seed)
        chosen.append(sources.hold_out(numbered(1000), 0.1, "validation")[1].index)
    np.testing.assert_array_equal(*chosen)


@pytest.mark.parametrize("share", [0.0, 0.04, 0.96, 1.0])
def test_empty_part_is_refused(share):
    refused(
        rf"test share of {share} of 10 examples.*at least one on both sides",
        sources.hold_out,
        numbered(10),
        share,
        "test",
    )


# .npz files.


def write_npz(path, **changes):
    train, test = arrays(40), arrays(10)
    content = {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}
    content |= changes
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    return path


def load_npz(path, **kwargs):
    return sources.load(name="npz", dir=str(path), **kwargs)


def test_npz_gives_back_its_arrays(tmp_path):
    splits = load_npz(write_npz(tmp_path / "a.npz"))
    assert sizes(splits) == [36, 4, 10]
    for split, count in ((splits.train, 40), (splits.validation, 40), (splits.test, 10)):
        images, labels = arrays(count)
        np.testing.assert_array_equal(split.images, images)
        np.testing.assert_array_equal(split.labels, labels)
        assert split.class_names == ("0", "1", "2")
    index = np.sort([*splits.train.index, *splits.validation.index])
    np.testing.assert_array_equal(index, np.arange(40))


@pytest.mark.parametrize("key", ["x_train", "y_train", "x_test", "y_test"])
def test_npz_without_a_key_is_refused(tmp_path, key):
    path = write_npz(tmp_path / "a.npz", **{key: None})
    message = refused(f"{key} missing", load_npz, path)
    assert str(path) in message


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", b"PK\x03\x04" + bytes(100)],
    ids=["empty", "text", "broken archive"],
)
def test_what_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    message = refused(r"cannot be read as \.npz", load_npz, path)
    assert str(path) in message


def test_npz_cut_short_is_refused(tmp_path):
    path = write_npz(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:-100])
    refused(r"cannot be read as \.npz", load_npz, path)


@pytest.mark.parametrize("dir", [None, "absent.npz", "."])
def test_absent_npz_is_refused(tmp_path, dir):
    path = dir and str(tmp_path / dir)
    message = refused(
        "data.name=npz.*expected the path of an .npz file", sources.load, name="npz", dir=path
    )
    assert repr(path) in message


def test_message_names_the_part_of_the_npz_that_does_not_fit(tmp_path):
    path = write_npz(tmp_path / "a.npz", y_test=np.arange(10))
    refused(r"a\.npz: test: received labels from 0 to 9, expected 0 to 2", load_npz, path)


# TFDS. The sets are prepared here, as `tfds build` would.


def prepare(folder, splits, name="cifar10", version="3.0.2", **features):
    """Writes a prepared TFDS set; each split is (images, labels)."""
    standard = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(names=list("abc")),
    }
    features = {n: f for n, f in {**standard, **features}.items() if f is not None}
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=version,
        features=tfds.features.FeaturesDict(features),
        split_datasets={
            split: tf.data.Dataset.from_tensor_slices(
                {
                    n: values
                    for n, values in {
                        "id": [f"{split}_{i}" for i in range(len(labels))],
                        "image": images,
                        "label": labels,
                    }.items()
                    if n in features
                }
            )
            for split, (images, labels) in splits.items()
        },
        data_dir=str(folder),
    )
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    splits = {"train": arrays(20, (32, 32, 3)), "test": arrays(6, (32, 32, 3))}
    return prepare(tmp_path_factory.mktemp("tfds"), splits)


def in_order(source):
    """TFDS shuffles when it writes, so examples are compared in the pixels' order."""
    order = np.lexsort(source.images.reshape(len(source.images), -1).T)
    return source.images[order], source.labels[order]


def test_prepared_tfds_set_is_read_exactly(prepared):
    splits = sources.load(name="cifar10", dir=str(prepared), validation_share=0.0)
    for got, count in ((splits.train, 20), (splits.test, 6)):
        expected = sources.from_arrays(*arrays(count, (32, 32, 3)))
        for one, other in zip(in_order(got), in_order(expected), strict=True):
            np.testing.assert_array_equal(one, other)
        assert got.class_names == ("a", "b", "c")


def test_validation_is_taken_from_the_training_split(prepared):
    splits = sources.load(name="cifar10", dir=str(prepared), validation_share=0.1)
    assert sizes(splits) == [18, 2, 6]
    index = np.sort([*splits.train.index, *splits.validation.index])
    np.testing.assert_array_equal(index, np.arange(20))


def test_set_of_ones_own_needs_no_test_split(tmp_path):
    # A name TFDS does not know is looked for in the folder.
    prepare(tmp_path, {"train": arrays(20, (32, 32, 3))}, name="mine", version="1.0.0")
    splits = sources.load(name="mine", dir=str(tmp_path))
    assert sizes(splits) == [14, 2, 4]
    assert splits.train.class_names == ("a", "b", "c")


def test_validation_split_serves_where_there_is_no_test_split(tmp_path):
    parts = {"train": arrays(20, (32, 32, 3)), "validation": arrays(6, (32, 32, 3))}
    prepare(tmp_path, parts, name="mine", version="1.0.0")
    assert sizes(sources.load(name="mine", dir=str(tmp_path))) == [18, 2, 6]


def first_record(data):
    """The bytes of the first record: its length, a checksum, its content, a checksum."""
    return data[: 8 + 4 + struct.unpack("<Q", data[:8])[0] + 4]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="cut within a record"),
        pytest.param(first_record, id="cut after a record"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(
            lambda data: data[:-500] + bytes([data[-500] ^ 1]) + data[-499:],
            id="one bit flipped",
        ),
    ],
)
def test_damaged_tfds_set_is_refused(prepared, tmp_path, damage):
    shutil.copytree(prepared, tmp_path / "copy")
    (path,) = (tmp_path / "copy").rglob("*-train.tfrecord-*")
    path.write_bytes(damage(path.read_bytes()))
    message = refused(
        "(is damaged|holds).*delete the folder and prepare it again",
        sources.load,
        name="cifar10",
        dir=str(tmp_path / "copy"),
    )
    assert str(path.parent) in message


def raises(error):
    def function(*args, **kwargs):
        raise error

    return function


@pytest.mark.parametrize("found_out", ["before", "while fetching"])
def test_set_neither_prepared_nor_fetched_is_refused(tmp_path, monkeypatch, found_out):
    # TFDS itself retries for minutes, so the network is looked for before.
    offline = raises(ConnectionError("no\nroute to the host"))
    before, fetching = {
        "before": (offline, raises(AssertionError("tried to fetch"))),
        "while fetching": (lambda: None, offline),
    }[found_out]
    monkeypatch.setattr(host, "check_network", before)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fetching)
    message = refused(
        "cifar10 is not prepared", sources.load, name="cifar10", dir=str(tmp_path)
    )
    for part in (str(tmp_path), "no route", "tfds build cifar10", "--config.data.dir"):
        assert part in message


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("cifr10", "cifar10"), ("digit", "digits"), ("fashon_mnist", "fashion_mnist")],
)
def test_unknown_set_is_refused_with_the_nearest(name, nearest):
    refused(
        rf"data\.name={name}, .*nor a TFDS dataset.*Did you mean.* {nearest}\b",
        sources.load,
        name=name,
    )


def test_version_that_does_not_exist_is_refused(tmp_path):
    refused(
        r"TFDS cannot open cifar10:9\.9\.9",
        sources.load,
        name="cifar10:9.9.9",
        dir=str(tmp_path),
    )


def test_set_larger_than_its_share_of_the_memory_is_refused(prepared, monkeypatch):
    decoded = 26 * 32 * 32 * 3
    monkeypatch.setattr(host, "memory_bytes", lambda: 2 * 2**30)
    fits, barely_not = decoded / 2**31, (decoded - 1) / 2**31
    sources.load(name="cifar10", dir=str(prepared), memory_share=fits)
    refused(
        r"cifar10 takes .* decoded, more than data\.memory_share=.* of the 2\.0 GiB here",
        sources.load,
        name="cifar10",
        dir=str(prepared),
        memory_share=barely_not,
    )


@pytest.mark.parametrize(
    ("features", "splits", "message"),
    [
        ({"label": None}, ("train",), "expected an image and a class label"),
        (
            {"image": tfds.features.Image(shape=(None, None, 3))},
            ("train",),
            "images of varying size in files without random access.*file_format=array_record",
        ),
        ({}, ("test",), "has the splits test, expected 'train'"),
    ],
    ids=["no labels", "varying size", "no training split"],
)
def test_set_that_cannot_be_trained_on_is_refused(tmp_path, features, splits, message):
    content = {split: arrays(4, (32, 32, 3)) for split in splits}
    prepare(tmp_path, content, name="mine", version="1.0.0", **features)
    refused(message, sources.load, name="mine", dir=str(tmp_path))
