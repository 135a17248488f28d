"""predictions.npz: what a model says of every test image."""

import keras
import numpy as np
import pytest
import tiny

from tfaccel import predictions
from tfaccel.data.pipeline import EvaluationData


def by_hand(model, source):
    outputs = np.array(model(source.images / np.float32(255), training=False), np.float64)
    return np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)


# 20 examples in batches of 8: the last batch is padded.
@pytest.mark.parametrize("replicas", [1, 2])
def test_what_is_collected(replicas, tmp_path):
    with tiny.strategy(replicas).scope():
        model = tiny.model()
    source = tiny.source(count=20)
    predictions.write(
        tmp_path / "p.npz",
        predictions.collect(model, EvaluationData(source, 8, tiny.unit)),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]
    found = dict(np.load(tmp_path / "p.npz", allow_pickle=False))
    expected = by_hand(model, source)
    np.testing.assert_array_equal(found["labels"], source.labels)
    np.testing.assert_array_equal(found["predictions"], expected.argmax(axis=1))
    # float32 against float64.
    np.testing.assert_allclose(found["probabilities"], expected.max(axis=1), rtol=1e-5)
    wrong = found["labels"] != found["predictions"]
    assert found["confusion"].sum() == 20
    assert np.trace(found["confusion"]) == 20 - wrong.sum()
    assert found["confusion"][2].sum() == (source.labels == 2).sum()
    assert found["class_names"].tolist() == ["a", "b", "c", "d"]
    worst = found["mistakes"]
    assert set(worst) == set(np.flatnonzero(wrong))
    assert (np.diff(found["probabilities"][worst]) <= 0).all()
    np.testing.assert_array_equal(found["mistake_images"], source.images[worst])
    kinds = {name: array.dtype for name, array in found.items()}
    whole = ("labels", "predictions", "confusion", "mistakes")
    assert all(kinds[name] == np.int32 for name in whole)
    assert (kinds["probabilities"], kinds["mistake_images"]) == (np.float32, np.uint8)


def test_a_model_with_probabilities_is_taken_at_its_word():
    source = tiny.source(count=8)
    outputs = keras.layers.Dense(4, activation="softmax")
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), outputs])
    found = predictions.collect(model, EvaluationData(source, 8, tiny.unit))
    expected = np.array(model(source.images / np.float32(255))).max(axis=1)
    np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-6)


def summary(labels, predicted, probabilities, classes=4):
    source = tiny.source(count=len(labels), classes=classes)
    arrays = np.array(labels), np.array(predicted), np.array(probabilities, np.float32)
    return predictions.summarize(*arrays, source)


def test_the_most_confident_mistakes_stand_first():
    found = summary([0, 1, 2, 3], [1, 1, 0, 0], [0.5, 0.9, 0.7, 0.6])
    assert found["mistakes"].tolist() == [2, 3, 0]
    assert found["confusion"].tolist() == [
        [0, 1, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 0],
        [1, 0, 0, 0],
    ]


def test_no_mistake_is_no_image():
    found = summary([0, 1], [0, 1], [0.5, 0.9])
    assert found["mistakes"].shape == (0,)
    assert found["mistake_images"].shape == (0, 8, 8, 3)


def test_a_model_that_says_nan_is_written_down():
    found = summary([0, 1, 1], [0, 0, 0], [np.nan, np.nan, 0.5])
    assert found["mistakes"].tolist() == [2, 1]


def test_at_most_so_many_mistakes_are_kept():
    count = predictions.MISTAKES + 5
    assert len(summary([0] * count, [1] * count, [0.5] * count)["mistakes"]) == count - 5


def test_the_confusion_matrix_as_a_picture():
    image = predictions.confusion_image(np.array([[3, 1], [0, 0]]), pixels=4)
    assert image.shape == (4, 4, 1)
    assert image[::2, ::2, 0].tolist() == [[64, 191], [255, 255]]
