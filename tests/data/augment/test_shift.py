import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfaccel import randomness
from tfaccel.data import augment
from tfaccel.errors import UserError

SHAPES = [(8, 8, 3), (5, 9, 1), (12, 7, 4)]


def batch(shape, count=40, dtype=np.uint8):
    images = np.random.default_rng(0).integers(1, 256, (count, *shape)).astype(dtype)
    return tf.constant(images), randomness.mix(11, tf.range(count))


def draw(keys, purpose, bound):
    word = randomness.purpose(purpose)
    return randomness.below(randomness.mix(keys, word), bound).numpy()


def slow_augment(images, keys, padding, flip):
    """Pads, crops and flips one example after the other, in NumPy."""
    places = 2 * padding + 1
    tops, lefts = draw(keys, "crop top", places), draw(keys, "crop left", places)
    mirrored = flip * draw(keys, "flip", 2)
    done = []
    for image, top, left, mirror in zip(images.numpy(), tops, lefts, mirrored, strict=True):
        height, width, _ = image.shape
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        cut = padded[top : top + height, left : left + width]
        done.append(cut[:, ::-1] if mirror else cut)
    return np.stack(done)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_pad_crop_flip_of_each_image(shape, padding, flip, dtype):
    images, keys = batch(shape, dtype=dtype)
    augmented = augment.build(crop_padding=padding, flip=flip)(images, keys)
    assert augmented.dtype == images.dtype
    np.testing.assert_array_equal(augmented, slow_augment(images, keys, padding, flip))


def test_nothing_is_asked_for_by_default():
    images, keys = batch((8, 8, 3))
    np.testing.assert_array_equal(augment.build()(images, keys), images)


@pytest.fixture(scope="module")
def choices():
    """What 40,000 examples got: pixels moved down, pixels moved right, mirrored."""
    count, size = 40_000, 9
    numbered = tf.reshape(tf.range(1, size**2 + 1), [1, size, size, 1])
    keys = randomness.mix(0, tf.range(count))
    cut = augment.build(crop_padding=4, flip=True)(tf.tile(numbered, [count, 1, 1, 1]), keys)
    # With 4 pixels of padding the pixel in the middle never comes from the border,
    # and one of its neighbours at least does not.
    middle, before, after = (cut[:, 4, column, 0].numpy() - 1 for column in (4, 3, 5))
    mirrored = np.where(after >= 0, after < middle, before > middle)
    return middle // size - 4, middle % size - 4, mirrored


def test_crops_are_uniform(choices):
    down, right, _ = choices
    table = np.histogram2d(down, right, bins=9, range=[[-4.5, 4.5]] * 2)[0]
    assert table.sum() == len(down)
    assert stats.chisquare(table.ravel()).pvalue > 0.001


def test_half_of_the_images_are_mirrored(choices):
    mirrored = choices[2].sum()
    assert stats.chisquare([mirrored, len(choices[2]) - mirrored]).pvalue > 0.001


def test_crop_and_flip_are_independent(choices):
    table = np.histogram2d(choices[1], choices[2], bins=(9, 2))[0]
    assert stats.chi2_contingency(table).pvalue > 0.001


def test_key_alone_decides_whatever_the_batch():
    images, keys = batch((8, 8, 3))
    apply = augment.build(crop_padding=2, flip=True)
    together = apply(images, keys)
    alone = [apply(images[i : i + 1], keys[i : i + 1])[0] for i in range(5)]
    np.testing.assert_array_equal(together[:5], alone)
    np.testing.assert_array_equal(apply(images[::-1], keys[::-1]), together[::-1])


def in_function(apply, images, keys):
    return tf.function(apply)(images, keys)


def in_xla(apply, images, keys):
    return tf.function(apply, jit_compile=True)(images, keys)


def in_tf_data(apply, images, keys):
    batches = tf.data.Dataset.from_tensor_slices((images, keys)).batch(16)
    return np.concatenate([*batches.map(apply).as_numpy_iterator()])


@pytest.mark.parametrize("run", [in_function, in_xla, in_tf_data])
@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_same_wherever_it_runs(run, shape):
    images, keys = batch(shape)
    apply = augment.build(crop_padding=3, flip=True)
    np.testing.assert_array_equal(run(apply, images, keys), apply(images, keys))


def test_static_shape_is_kept_in_a_graph():
    apply = tf.function(augment.build(crop_padding=1, flip=True)).get_concrete_function(
        tf.TensorSpec([None, 8, 6, 3], tf.uint8), tf.TensorSpec([None], tf.uint32)
    )
    assert apply.structured_outputs.shape[1:] == (8, 6, 3)


@pytest.mark.parametrize(
    ("shape", "padding", "advice"),
    [((8, 12, 3), 8, 1), ((32, 28, 1), 40, 3), ((4, 4, 3), 4, 1)],
)
def test_padding_that_could_hide_the_image_is_refused(shape, padding, advice):
    images, keys = batch(shape, count=2)
    with pytest.raises(UserError, match=rf"crop_padding={padding}.*Try {advice}\.") as error:
        augment.build(crop_padding=padding)(images, keys)
    assert f"{shape[0]}x{shape[1]}" in str(error.value)
    augment.check_fits(shape, advice)


def test_largest_padding_leaves_a_pixel_of_every_image():
    images, keys = batch((4, 6, 3), count=500)
    augmented = augment.build(crop_padding=3)(images, keys)
    assert tf.reduce_max(augmented, axis=(1, 2, 3)).numpy().min() > 0


def test_reflecting_border_is_numpys():
    images, keys = batch((6, 7, 3))
    augmented = augment.build(crop_padding=3, crop_border="reflect")(images, keys)
    tops, lefts = draw(keys, "crop top", 7), draw(keys, "crop left", 7)
    padded = np.pad(images, ((0, 0), (3, 3), (3, 3), (0, 0)), mode="reflect")
    expected = [
        image[top : top + 6, left : left + 7]
        for image, top, left in zip(padded, tops, lefts, strict=True)
    ]
    np.testing.assert_array_equal(augmented, expected)


def test_alternating_flip_shows_each_side_in_every_other_epoch():
    count = 2000
    images = tf.tile(tf.constant([[[[1], [2]]]], tf.uint8), [count, 1, 1, 1])
    apply = augment.build(alternating_flip=True)
    examples = tf.range(count, dtype=tf.int64)
    sides = [
        apply(images, randomness.example_keys(3, tf.fill([count], epoch), examples))[:, 0, 0, 0]
        for epoch in range(5)
    ]
    for earlier, later in itertools.pairwise(sides):
        np.testing.assert_array_equal(earlier + later, np.full(count, 3))
    # The first epoch's side is random.
    mirrored = int((sides[0].numpy() == 2).sum())
    assert stats.binomtest(mirrored, count, 0.5).pvalue > 0.001


def test_two_kinds_of_flip_are_refused():
    with pytest.raises(UserError, match=r"flip=True and .*alternating_flip=True"):
        augment.build(flip=True, alternating_flip=True)


def test_chain_applies_in_order():
    def add(images, keys):
        return images + 1

    def double(images, keys):
        return images * 2

    assert augment.chain(add, double)(np.array([3]), None).tolist() == [8]
