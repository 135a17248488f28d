"""The user's own data, by "module:function"."""

import numpy as np
import pytest
import tensorflow as tf
from test_pipeline import assert_same, batches

from tfaccel.data import pipeline, sources
from tfaccel.data.source import read_errors
from tfaccel.errors import UserError

MODULE = """
import numpy as np

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 4, 5, 3), dtype=np.uint8)
LABELS = np.arange(20) % 3


class Items:
    class_names = ("a", "b", "c")

    def __init__(self, count=20, bad=()):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"no item {index}")
        return IMAGES[index], LABELS[index]


def arrays(dir=None):
    count = 10 if dir is None else int(dir)
    return {"train": (IMAGES[:count], LABELS[:count]), "test": (IMAGES[15:], LABELS[15:])}

def texts():
    names = np.array(["x", "y", "z"])
    return {"train": (IMAGES, names[LABELS], ("x", "y", "z")), "test": (IMAGES[:3], names[:3])}

def items():
    return {"train": Items(), "validation": Items(5)}

def with_bad_item():
    return {"train": Items(bad=(4,)), "test": Items(3)}

def ready():
    from tfaccel.data.source import from_arrays
    return {"train": from_arrays(IMAGES, LABELS)}

def nothing(): return None
def odd_split(): return {"train": Items(), "dev": Items()}
def empty(): return {"train": Items(0)}
def number(): return {"train": 3}
def nameless(): return {"train": [(IMAGES[0], 0)]}

class Grey(Items):
    def __getitem__(self, index): return IMAGES[index, 0], 0

class OneClass(Items):
    class_names = ("a",)

def grey(): return {"train": Grey()}
def wrong_label(): return {"train": OneClass()}
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    import sys

    sys.modules.pop("own_data", None)


def load(function, **options):
    return sources.load(name=f"own_data:{function}", **{"validation_share": 0.0, **options})


def contents():
    import own_data

    return own_data.IMAGES, own_data.LABELS


def test_arrays():
    splits = load("arrays")
    images, labels = contents()
    np.testing.assert_array_equal(splits.train.images, images[:10])
    np.testing.assert_array_equal(splits.test.labels, labels[15:])


def test_dir_is_handed_over():
    assert len(load("arrays", dir="7").train) == 7


def test_labels_that_are_texts():
    splits = load("texts")
    assert splits.train.labels.tolist() == contents()[1].tolist()
    assert splits.test.class_names == ("x", "y", "z")


def test_a_source_is_taken_as_it_is():
    splits = load("ready", validation_share=0.25)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [12, 4, 4]


def test_items_are_fetched_by_index():
    splits = load("items")
    assert (len(splits.train), len(splits.test)) == (20, 5)
    assert splits.train.image_shape == (4, 5, 3)
    images, labels = splits.train.fetch(tf.constant([3, 11], tf.int64))
    np.testing.assert_array_equal(images, contents()[0][[3, 11]])
    np.testing.assert_array_equal(labels, contents()[1][[3, 11]])


def test_batches_of_items_equal_those_of_arrays():
    images, labels = contents()
    data = [
        pipeline.TrainingData(source, 2, 6)
        for source in (load("items").train, sources.from_arrays(images, labels))
    ]
    assert_same(*(batches(d.dataset(), 5) for d in data))


def test_an_item_that_raises_is_named():
    data = pipeline.TrainingData(load("with_bad_item").train, 0, 5)
    with (
        pytest.raises(UserError, match=r"item 4 of own_data:with_bad_item train.*no item 4"),
        read_errors(),
    ):
        batches(data.dataset(), 4)


def test_an_item_that_raises_can_be_skipped(log):
    data = pipeline.TrainingData(load("with_bad_item", on_bad_image="skip").train, 0, 5)
    assert len(batches(data.dataset(), 4)) == 4
    assert sum("item 4 of" in message for message in log.messages) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("own_dta:items", {}, "there is no module 'own_dta'"),
        ("own_data:itms", {}, "has no function 'itms'. Did you mean items"),
        (
            "own_data:items",
            {"dir": "x"},
            "data.dir=x, but own_data:items has no argument 'dir'",
        ),
        ("own_data:items", {"image_size": 8}, "data.image_size=8 for data.name=own_data:items"),
        ("own_data:nothing", {}, "returned a NoneType, expected a dictionary with 'train'"),
        ("own_data:odd_split", {}, r"the split\(s\) dev, expected train, test and validation"),
        ("own_data:empty", {}, "train is empty, expected at least one item"),
        ("own_data:number", {}, "train is an int, expected a tfaccel.data.source.Source"),
        ("own_data:nameless", {}, "attribute class_names"),
        ("own_data:grey", {}, r"dtype uint8 and shape \(5, 3\), expected uint8 .height, width"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(name, options, message):
    with pytest.raises(UserError, match=message) as error:
        sources.load(name=name, **options)
    assert "\n" not in str(error.value)


def test_a_label_beyond_the_classes_is_named():
    with pytest.raises(UserError, match=r"\(label 1, expected 0 to 0\)"), read_errors():
        batches(pipeline.TrainingData(load("wrong_label").train, 0, 6).dataset(), 4)
