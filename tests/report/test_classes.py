"""Confusion, accuracy by class and mistakes, for one class to a thousand."""

import base64
import io

import numpy as np
import pytest
import run_folders
from PIL import Image

from tfaccel.report import classes

NEEDS_TENSORFLOW = False


def arrays(labels, predictions, names="abc", images=None, mistakes=()):
    confusion = np.zeros((len(names), len(names)), np.int32)
    np.add.at(confusion, (labels, predictions), 1)
    images = np.zeros((0, 8, 8, 3), np.uint8) if images is None else images
    return {
        "labels": np.array(labels, np.int32),
        "predictions": np.array(predictions, np.int32),
        "probabilities": np.full(len(labels), 0.75, np.float32),
        "confusion": confusion,
        "class_names": np.array(list(names)),
        "mistakes": np.array(mistakes, np.int32),
        "mistake_images": images,
    }


def opened(uri):
    header, encoded = uri.split(",")
    assert header.startswith("data:image/")
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


def test_without_predictions_there_is_nothing():
    assert classes.describe({}) == {}


def test_a_small_confusion_is_a_table():
    found = classes.describe(arrays([0, 0, 0, 1, 2], [0, 0, 1, 1, 1]))
    assert [[cell["count"] for cell in row] for row in found["table"]] == [
        [2, 1, 0],
        [0, 1, 0],
        [0, 1, 0],
    ]
    assert found["table"][0][0] == {"count": 2, "share": 0.6667, "right": True}
    assert found["picture"] is None
    assert found["pairs"] == [
        {"label": "a", "prediction": "b", "count": 1},
        {"label": "c", "prediction": "b", "count": 1},
    ]
    assert [(row["name"], row["accuracy"]) for row in found["classes"]["rows"]] == [
        ("a", pytest.approx(2 / 3)),
        ("b", 1.0),
        ("c", 0.0),
    ]


def test_one_class():
    found = classes.describe(arrays([0, 0], [0, 0], names="a"))
    assert found["table"] == [[{"count": 2, "share": 1.0, "right": True}]]
    assert (found["pairs"], found["mistakes"], found["count"]) == ([], [], 2)


def test_a_class_without_images_is_said_and_not_counted_as_wrong():
    found = classes.describe(arrays([0, 1], [0, 1]))
    assert [row["name"] for row in found["classes"]["rows"]] == ["a", "b"]
    assert found["classes"]["without"] == 1


def test_a_thousand_classes_are_a_picture_and_the_worst():
    found = classes.describe(run_folders.predictions(np.random.default_rng(0), 1000, 20_000, 8))
    assert found["table"] is None
    assert opened(found["picture"]).size == (1000, 1000)
    assert found["classes"]["many"]
    accuracies = [row["accuracy"] for row in found["classes"]["rows"]]
    assert len(accuracies) == 24
    assert accuracies == sorted(accuracies)


def test_the_picture_is_blue_where_right_orange_where_wrong_and_clear_elsewhere():
    picture = opened(classes._picture(np.array([[3, 1], [0, 4]])))
    pixels = np.asarray(picture.convert("RGBA"))
    assert tuple(pixels[1, 1]) == (0, 114, 178, 255)
    # The root of a quarter is a half.
    assert tuple(pixels[0, 1]) == (213, 94, 0, 128)
    assert pixels[1, 0, 3] == 0


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_mistakes_are_shown_pixel_by_pixel(channels):
    images = np.arange(2 * 5 * 4 * channels, dtype=np.uint8).reshape(2, 5, 4, channels)
    found = classes.describe(arrays([0, 1, 2], [1, 1, 0], images=images, mistakes=[2, 0]))[
        "mistakes"
    ]
    assert [(m["label"], m["prediction"], m["probability"], m["place"]) for m in found] == [
        ("c", "a", 0.75, 2),
        ("a", "b", 0.75, 0),
    ]
    shown = np.asarray(opened(found[0]["image"]))
    np.testing.assert_array_equal(
        shown, images[0, ..., 0] if channels == 1 else images[0, ..., :3]
    )


def test_large_mistakes_are_made_smaller():
    images = np.zeros((1, 300, 600, 3), np.uint8)
    found = classes.describe(arrays([0], [1], images=images, mistakes=[0]))["mistakes"]
    assert opened(found[0]["image"]).size == (192, 96)
