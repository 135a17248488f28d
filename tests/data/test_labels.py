import numpy as np
import pytest

from tfaccel.data import labels
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False

EXPECTED = [0, 2, 1, 2]
ANIMALS = ("cat", "dog", "newt")


@pytest.mark.parametrize(
    "given",
    [
        EXPECTED,
        np.array(EXPECTED)[:, None],
        np.eye(3, dtype=np.uint8)[EXPECTED],
        np.eye(3)[EXPECTED],
        np.eye(3, dtype=bool)[EXPECTED],
    ],
    ids=["numbers", "column", "one-hot", "one-hot floats", "one-hot bools"],
)
def test_numbers_in_any_form(given):
    numbers, names = labels.whole_numbers(given, 4)
    assert (numbers.dtype, numbers.tolist(), names) == (np.int32, EXPECTED, ("0", "1", "2"))


@pytest.mark.parametrize(
    "given",
    [
        ["cat", "newt", "dog", "newt"],
        np.array([["cat"], ["newt"], ["dog"], ["newt"]]),
        np.array([b"cat", b"newt", b"dog", b"newt"]),
        np.array(["cat", "newt", "dog", "newt"], object),
    ],
    ids=["texts", "column", "bytes", "objects"],
)
def test_texts_become_their_place_in_the_list_of_classes(given):
    numbers, names = labels.whole_numbers(given, 4, ANIMALS)
    assert (numbers.tolist(), names) == (EXPECTED, ANIMALS)


def test_one_hot_columns_that_are_never_used_are_classes():
    assert labels.whole_numbers(np.eye(5)[[0, 1]], 2)[1] == tuple("01234")


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        (["cat", "dog"], (), r"texts \(cat, dog, \.\.\.\) without a list.*class_names"),
        (["cat", "dgo"], ANIMALS, "label 'dgo', which is none of the 3 .* mean dog"),
        ([[0.5, 0.5], [1, 0]], (), r"row 0 is \[0.5, 0.5\], expected one-hot rows"),
        ([[1, 0], [1, 1]], (), r"row 1 is \[1, 1\], expected one-hot rows"),
        ([[1, 0], [0, 0]], (), "row 1 .* expected one-hot"),
        ([[2, 0], [0, 1]], (), "row 0 .* expected one-hot"),
        ([0, 3], ANIMALS, r"labels from 0 to 3, expected 0 to 2 \(3 classes\)"),
        ([-1, 1], ANIMALS, "labels from -1 to 1, expected 0 to 2"),
        (np.eye(4)[[0, 3]], ANIMALS, "labels from 0 to 3, expected 0 to 2"),
        ([0.0, 1.0], (), "dtype float64 and shape .2,. for 2 images"),
        ([0, 1, 2], (), "shape .3,. for 2 images"),
        ([[[0]], [[1]]], (), "shape .2, 1, 1. for 2 images"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_a_line(given, names, message):
    with pytest.raises(UserError, match=f"^mine: received .*{message}") as error:
        labels.whole_numbers(given, 2, names, "mine")
    assert "\n" not in str(error.value)
