import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfaccel import randomness
from tfaccel.data.augment import boxes

MANY = 20_000


def keys(count=MANY):
    return randomness.mix(0, tf.range(count))


def drawn(heights, widths, count=MANY, **options):
    parts = boxes.random_resized_boxes(keys(count), heights, widths, **options)
    return [part.numpy() for part in parts]


@pytest.mark.parametrize(
    ("height", "width"), [(1, 1), (480, 640), (7, 300), (300, 7), (1000, 1), (3, 2)]
)
def test_boxes_lie_in_the_image_and_are_never_empty(height, width):
    top, left, rows, columns = drawn(height, width, count=2000)
    assert {part.dtype for part in (top, left, rows, columns)} == {np.dtype(np.int32)}
    assert min(top.min(), left.min()) >= 0
    assert min(rows.min(), columns.min()) >= 1
    assert (top + rows).max() <= height
    assert (left + columns).max() <= width


def test_areas_are_uniform():
    # Up to half of the area, every shape fits, so that no draw is made again.
    _, _, rows, columns = drawn(1000, 1000, scale=(0.08, 0.5))
    shares = rows * columns / 1e6
    assert stats.kstest(shares, stats.uniform(0.08, 0.42).cdf).pvalue > 0.001


def test_shapes_are_log_uniform():
    _, _, rows, columns = drawn(1000, 1000, scale=(0.08, 0.5))
    low, high = np.log([3 / 4, 4 / 3])
    logarithms = np.log(columns / rows)
    assert stats.kstest(logarithms, stats.uniform(low, high - low).cdf).pvalue > 0.001


def test_places_are_uniform_and_independent():
    top, left, rows, columns = drawn(16, 16, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    assert set(rows) == set(columns) == {8}
    table = np.histogram2d(top, left, bins=9, range=[[-0.5, 8.5]] * 2)[0]
    assert table.sum() == MANY
    assert stats.chisquare(table.ravel()).pvalue > 0.001


def test_image_of_another_shape_gets_its_largest_central_part():
    # No part of 8 % fits in such a strip.
    top, left, rows, columns = drawn(10, 1000, count=5)
    assert [*zip(top, left, rows, columns, strict=True)] == [(0, 493, 10, 13)] * 5


def test_each_image_has_its_own_size():
    heights, widths = tf.constant([10, 480, 500]), tf.constant([1000, 1, 500])
    together = np.stack(boxes.random_resized_boxes(keys(3), heights, widths))
    for number, (height, width) in enumerate(zip(heights, widths, strict=True)):
        one = keys(3)[number : number + 1]
        alone = np.stack(boxes.random_resized_boxes(one, height, width))
        np.testing.assert_array_equal(alone[:, 0], together[:, number])


def test_graph_and_xla_draw_the_same_boxes():
    eager = drawn(480, 640)
    for jit in (False, True):
        compiled = tf.function(boxes.random_resized_boxes, jit_compile=jit)(keys(), 480, 640)
        np.testing.assert_array_equal(np.stack(compiled), np.stack(eager))


def test_mask_is_true_inside_and_may_reach_out():
    images = np.zeros((2, 3, 4, 1))
    top, left, width = (tf.constant(pair) for pair in ([1, -1], [2, 0], [5, 1]))
    got = boxes.mask(images, top, left, 2, width)
    expected = [
        [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]],
        [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    ]
    np.testing.assert_array_equal(got[..., 0], expected)
