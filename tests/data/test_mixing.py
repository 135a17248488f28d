import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from scipy import stats

from tfaccel import randomness
from tfaccel.data import mixing
from tfaccel.errors import UserError

CHOICES = [
    {"mixup": 0.2},
    {"cutmix": 1.0},
    {"mixup": 0.2, "cutmix": 1.0},
    {"mixup": 1.0, "label_smoothing": 0.1},
    {"label_smoothing": 0.1},
]


def keys(count):
    return randomness.mix(0, tf.range(count))


def batch(count=12, size=8, classes=5):
    labels = np.random.default_rng(0).integers(0, classes, count).astype(np.int32)
    return tf.constant(tiny.photos(count, size)), tf.constant(labels)


def test_nothing_is_asked_for_by_default():
    assert mixing.build() is None


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_rows_of_labels_sum_to_1(options):
    images, labels = batch(200)
    _, soft = mixing.build(**options)(images, labels, keys(200), 5)
    assert (soft.dtype, soft.shape) == (tf.float32, (200, 5))
    # Three numbers of float32 are added up, and rounded to 24 bits each.
    np.testing.assert_allclose(soft.numpy().sum(axis=1), 1, rtol=0, atol=4e-7)
    assert soft.numpy().min() >= 0


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_graph_and_xla_agree_to_the_bit(options):
    images, labels = batch()

    def mix(images, labels, keys):
        return mixing.build(**options)(images, labels, keys, 5)

    eager = mix(images, labels, keys(12))
    for jit in (False, True):
        compiled = tf.function(mix, autograph=False, jit_compile=jit)
        for got, expected in zip(compiled(images, labels, keys(12)), eager, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_mixup_is_the_sum_of_the_shares_of_both():
    images, labels = batch()
    other = tf.reverse(images, [0]), tf.constant([4] * 12)
    own = tf.zeros_like(labels)
    mixed, soft = mixing.build(mixup=0.4)(images, own, keys(12), 5, other)
    share = soft.numpy()[:, 0][:, None, None, None]
    expected = images.numpy() * share + other[0].numpy() * (1 - share)
    # Rounded to whole numbers, from shares in 65,536ths.
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=0.51)
    np.testing.assert_allclose(soft.numpy()[:, 4], 1 - share.ravel(), atol=1e-6)


def test_mixup_of_floating_point_is_not_rounded():
    images = tf.constant(np.linspace(0, 1, 2 * 9).reshape(2, 3, 3, 1), tf.float32)
    mixed, soft = mixing.build(mixup=1.0)(images, tf.constant([0, 1]), keys(2), 2)
    share = soft.numpy()[0, 0]
    expected = images[0] * share + images[1] * (1 - share)
    np.testing.assert_allclose(mixed[0], expected, rtol=0, atol=1e-6)


def test_cutmix_labels_are_the_areas():
    own, other = tf.zeros([300, 9, 7, 1], tf.uint8), tf.ones([300, 9, 7, 1], tf.uint8)
    zeros, ones = tf.zeros([300], tf.int32), tf.ones([300], tf.int32)
    mixed, soft = mixing.build(cutmix=1.0)(own, zeros, keys(300), 2, (other, ones))
    covered = mixed.numpy().mean(axis=(1, 2, 3))
    np.testing.assert_allclose(soft.numpy()[:, 1], covered, rtol=0, atol=1e-6)
    pasted = mixed.numpy()[..., 0] > 0
    rows, columns = pasted.any(axis=2), pasted.any(axis=1)
    np.testing.assert_array_equal(pasted, rows[:, :, None] & columns[:, None, :])
    assert 0 < covered.mean() < 1


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_follow_the_beta_distribution(alpha):
    _, soft = mixing.build(mixup=alpha)(
        tf.zeros([20_000, 1, 1, 1], tf.uint8), tf.zeros([20_000], tf.int32),
        keys(20_000), 2, (tf.zeros([20_000, 1, 1, 1], tf.uint8), tf.ones([20_000], tf.int32)),
    )  # fmt: skip
    ranks = stats.beta(alpha, alpha).cdf(soft.numpy()[:, 0].astype(np.float64))
    counts = np.histogram(ranks, bins=20, range=(0, 1))[0]
    # At an end of the interval float32 cannot tell neighbouring quantiles apart.
    assert stats.chisquare(counts[1:-1]).pvalue > 0.001


def test_half_of_the_examples_are_cut_and_half_blended():
    own, other = tf.zeros([4000, 4, 4, 1], tf.uint8), tf.fill([4000, 4, 4, 1], np.uint8(250))
    zeros, ones = tf.zeros([4000], tf.int32), tf.ones([4000], tf.int32)
    both = mixing.build(mixup=4.0, cutmix=1.0)
    mixed, _ = both(own, zeros, keys(4000), 2, (other, ones))
    blended = ((mixed.numpy() > 0) & (mixed.numpy() < 250)).any(axis=(1, 2, 3)).sum()
    assert stats.binomtest(int(blended), 4000, 0.5).pvalue > 0.001


def test_label_smoothing_is_kerass():
    images, labels = batch()
    same, soft = mixing.build(label_smoothing=0.1)(images, labels, keys(12), 5)
    np.testing.assert_array_equal(same, images)
    logits = np.random.default_rng(1).normal(size=(12, 5)).astype(np.float32)
    ours = keras.losses.CategoricalCrossentropy(from_logits=True)(soft, logits)
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(
        tf.one_hot(labels, 5), logits
    )
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


def test_partners_are_a_permutation_of_the_same_batch():
    for step in range(20):
        places = tf.range(step * 12, step * 12 + 12, dtype=tf.int64)
        partners = mixing.partner_places(places, 12, seed=3).numpy()
        assert sorted(partners) == [*places.numpy()]
        assert (partners != places.numpy()).all()
        part = mixing.partner_places(places[4:8], 12, seed=3)
        np.testing.assert_array_equal(part, partners[4:8])


def test_partners_change_from_step_to_step():
    distances = [
        int(mixing.partner_places(tf.constant([step * 12], tf.int64), 12, 3)[0]) - step * 12
        for step in range(40)
    ]
    assert set(distances) == {*range(1, 12)}


def test_a_batch_of_one_mixes_with_itself():
    assert mixing.partner_places(tf.constant([7], tf.int64), 1, 0).numpy().tolist() == [7]


@pytest.mark.parametrize(
    "loss",
    ["sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy()],
    ids=["name", "object"],
)
def test_sparse_loss_is_refused_with_the_right_one(loss):
    model = tiny.model()
    model.compile("sgd", loss)
    with pytest.raises(UserError) as error:
        mixing.check_loss(model)
    assert "expected keras.losses.CategoricalCrossentropy" in str(error.value)
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    mixing.check_loss(model)


def test_labels_that_say_nothing_are_refused():
    with pytest.raises(UserError, match=r"label_smoothing=1\.0, expected less than 1"):
        mixing.build(label_smoothing=1.0)
