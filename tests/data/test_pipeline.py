from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from tfaccel import distribution
from tfaccel.data import augment, mixing, normalize, order, pipeline, sources
from tfaccel.errors import UserError

COUNT, BATCH, SEED = 101, 12, 5


def numbered(count):
    """A source of random images, each labelled with its own number."""
    images = np.random.default_rng(0).integers(0, 256, (count, 6, 5, 3), dtype=np.uint8)
    return sources.from_arrays(images, np.arange(count))


def training(count=COUNT, batch=BATCH, seed=SEED):
    to_float = normalize.build(None, normalize="unit")
    augmented = augment.build(crop_padding=2, flip=True)
    return pipeline.TrainingData(numbered(count), seed, batch, augmented, to_float)


def everything(count=40, jit=True, policy=None):
    """Every technique but a policy at once, compiled as a run compiles it."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    source = sources.from_arrays(images, np.arange(count) % 5)
    augmented = augment.chain(
        augment.resized_crop.build(smallest_area=0.5),
        augment.build(crop_padding=2, alternating_flip=True),
        policy or augment.unchanged,
        augment.color_jitter.build(brightness=0.4, hue=0.1),
        augment.erasing.build(probability=0.5),
        augment.cutout.build(size=3),
    )
    to_float = normalize.build(lambda: normalize.channel_statistics(source))
    mixed = mixing.build(mixup=0.4, cutmix=1.0, label_smoothing=0.1)
    return pipeline.TrainingData(source, SEED, BATCH, augmented, to_float, mixed, jit)


def batches(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def strategy_batches(of_shard, replicas, count):
    """What a real strategy hands its replicas, put together step by step."""
    strategy = distribution.build(strategy="mirrored", logical_cpus=replicas)
    assert strategy.num_replicas_in_sync == replicas
    iterator = iter(strategy.distribute_datasets_from_function(of_shard))
    steps = []
    for _ in range(count):
        parts = [strategy.experimental_local_results(part) for part in next(iterator)]
        assert {len(part) for part in parts} == {replicas}
        steps.append(tuple(np.concatenate(part) for part in parts))
    return steps


def assert_same(got, expected):
    for got_batch, expected_batch in zip(got, expected, strict=True):
        for one, other in zip(got_batch, expected_batch, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def expected():
    """The first 20 batches, from one device: more than two epochs."""
    return batches(training().dataset(), 20)


def test_batch_holds_the_examples_of_its_places():
    data = pipeline.TrainingData(numbered(COUNT), SEED, BATCH)
    places = tf.range(20 * BATCH, dtype=tf.int64)
    examples = order.examples_at(places, COUNT, SEED)[1].numpy().reshape(20, BATCH)
    assert_same(batches(data.dataset(), 20), [(data.source.images[e], e) for e in examples])


@pytest.mark.parametrize("replicas", [2, 4])
def test_batches_do_not_depend_on_the_replicas(replicas, expected):
    data = training()
    got = strategy_batches(lambda shard: data.dataset(0, shard), replicas, 20)
    assert_same(got, expected)


@pytest.mark.parametrize("threads", [1, 8])
def test_batches_do_not_depend_on_the_threads(threads, expected):
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    assert_same(batches(training().dataset().with_options(options), 20), expected)


# 8 straddles the first two epochs.
@pytest.mark.parametrize("step", [1, 7, 8, 19])
def test_restart_goes_on_with_the_same_batch(step, expected):
    assert_same(batches(training().dataset(first_step=step), 1), expected[step : step + 1])


def test_restart_under_a_strategy_goes_on_with_the_same_batches(expected):
    data = training()
    got = strategy_batches(lambda shard: data.dataset(7, shard), 2, 3)
    assert_same(got, expected[7:10])


@pytest.mark.parametrize(("pipelines", "replicas"), [(2, 4), (2, 2), (4, 4)])
def test_parts_of_several_workers_make_the_batch(pipelines, replicas, expected):
    contexts = [tf.distribute.InputContext(pipelines, i, replicas) for i in range(pipelines)]
    local = replicas // pipelines
    streams = [batches(training().dataset(7, c), 3 * local) for c in contexts]
    got = []
    for step in range(3):
        parts = [part for s in streams for part in s[step * local : (step + 1) * local]]
        got.append(tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    assert_same(got, expected[7:10])


def test_seeds_give_different_batches(expected):
    labels = batches(training(seed=SEED + 1).dataset(), 1)[0][1]
    assert not np.array_equal(labels, expected[0][1])


def test_example_is_augmented_anew_in_every_epoch():
    images, labels = zip(*batches(training(count=8, batch=8).dataset(), 2), strict=True)
    first, second = (
        part[np.argsort(label)] for part, label in zip(images, labels, strict=True)
    )
    # 50 ways to cut and mirror an image: 8 examples at once do not repeat theirs.
    assert not np.array_equal(first, second)


def test_every_example_comes_exactly_once_an_epoch():
    stream = batches(training(count=101, batch=10).dataset(), 101)
    epochs = np.concatenate([labels for _, labels in stream]).reshape(10, 101)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), [np.arange(101)] * 10)


@pytest.mark.parametrize(
    ("count", "batch", "expected"),
    [(101, 10, Fraction(101, 10)), (50_000, 128, Fraction(3125, 8)), (100, 10, Fraction(10))],
)
def test_steps_per_epoch_are_exact(count, batch, expected):
    source = sources.from_arrays(np.zeros((count, 1, 1, 1), np.uint8), np.zeros(count, int))
    steps = pipeline.TrainingData(source, 0, batch).steps_per_epoch
    assert isinstance(steps, Fraction)
    assert steps == expected


@pytest.mark.parametrize("replicas", [None, 2, 4])
def test_training_data_have_static_shapes_and_no_end(replicas):
    shard = replicas and tf.distribute.InputContext(1, 0, replicas)
    dataset = training().dataset(shard=shard)
    size = BATCH // (replicas or 1)
    assert dataset.element_spec == (
        tf.TensorSpec([size, 6, 5, 3], tf.float32),
        tf.TensorSpec([size], tf.int32),
    )
    # A finite dataset costs a collective a step on workers.
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


def evaluation(count=COUNT, batch=BATCH):
    to_float = normalize.build(None, normalize="unit")
    return pipeline.EvaluationData(numbered(count), batch, to_float)


@pytest.mark.parametrize(("count", "steps", "padding"), [(101, 9, 7), (96, 8, 0), (1, 1, 11)])
def test_evaluation_sees_every_example_once(count, steps, padding):
    data = evaluation(count)
    assert data.steps == steps
    images, labels, weights = (
        np.concatenate(p) for p in zip(*batches(data.dataset(), steps), strict=True)
    )
    np.testing.assert_array_equal(weights, [1.0] * count + [0.0] * padding)
    np.testing.assert_array_equal(labels[:count], np.arange(count))
    # The scale 1 / 255 is rounded to float32.
    np.testing.assert_allclose(images[:count], data.source.images / 255, rtol=1e-6)


def test_evaluation_weighs_nothing_after_its_steps():
    weights = [w for _, _, w in batches(evaluation().dataset(), 12)]
    assert [w.any() for w in weights] == [True] * 9 + [False] * 3


@pytest.mark.parametrize("replicas", [2, 4])
def test_evaluation_does_not_depend_on_the_replicas(replicas):
    data = evaluation()
    got = strategy_batches(data.dataset, replicas, data.steps)
    assert_same(got, batches(data.dataset(), data.steps))


@pytest.mark.parametrize("replicas", [None, 4])
def test_evaluation_data_have_static_shapes_and_no_end(replicas):
    shard = replicas and tf.distribute.InputContext(1, 0, replicas)
    dataset = evaluation().dataset(shard)
    size = BATCH // (replicas or 1)
    assert dataset.element_spec == (
        tf.TensorSpec([size, 6, 5, 3], tf.float32),
        tf.TensorSpec([size], tf.int32),
        tf.TensorSpec([size], tf.float32),
    )
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


def test_splits_are_disjoint_and_make_up_the_dataset(tmp_path):
    # Each image's first two pixels spell its number.
    numbers = np.arange(250)
    images = np.zeros((250, 2, 2, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = numbers // 16, numbers % 16
    path = tmp_path / "numbers.npz"
    np.savez(
        path,
        x_train=images[:200],
        y_train=numbers[:200] % 10,
        x_test=images[200:],
        y_test=numbers[200:] % 10,
    )
    splits = sources.load(name="npz", dir=str(path), validation_share=0.1)

    def seen(dataset, steps):
        pixels = np.concatenate([batch[0] for batch in batches(dataset, steps)])
        return (16 * pixels[:, 0, 0, 0].astype(int) + pixels[:, 0, 1, 0]).tolist()

    train = seen(pipeline.TrainingData(splits.train, SEED, 10).dataset(), 18)
    validation = seen(pipeline.EvaluationData(splits.validation, 10).dataset(), 2)
    test = seen(pipeline.EvaluationData(splits.test, 10).dataset(), 5)
    assert sorted(train + validation) == [*range(200)]
    assert test == [*range(200, 250)]


def test_placement_on_the_host_is_the_default():
    assert pipeline.place() == pipeline.place(placement="host") == "host"


@pytest.mark.parametrize("function", [pipeline.place, pipeline.check])
@pytest.mark.parametrize(
    ("placement", "message"),
    [("device", "placement=device: not yet. Use host"), ("gpu", "'gpu', expected one of host")],
)
def test_placement_elsewhere_is_refused(function, placement, message):
    with pytest.raises(UserError, match=message):
        function(placement=placement)


@pytest.fixture(scope="module")
def expected_of_everything():
    """The first 8 batches, from one device: more than two epochs."""
    return batches(everything().dataset(), 8)


def test_xla_changes_no_pixel(expected_of_everything):
    assert_same(batches(everything(jit=False).dataset(), 4), expected_of_everything[:4])


@pytest.mark.parametrize("replicas", [2, 4])
def test_no_technique_depends_on_the_replicas(replicas, expected_of_everything):
    data = everything()
    got = strategy_batches(lambda shard: data.dataset(0, shard), replicas, 8)
    assert_same(got, expected_of_everything)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("name", ["randaugment", "trivialaugment"])
def test_no_policy_depends_on_the_replicas(name, replicas):
    policies = {
        "randaugment": augment.randaugment.build(number=2),
        "trivialaugment": augment.trivialaugment.build(enabled=True),
    }
    data = everything(policy=policies[name])
    got = strategy_batches(lambda shard: data.dataset(0, shard), replicas, 8)
    assert_same(got, batches(data.dataset(), 8))


@pytest.mark.parametrize("threads", [1, 8])
def test_no_technique_depends_on_the_threads(threads, expected_of_everything):
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    dataset = everything().dataset().with_options(options)
    assert_same(batches(dataset, 8), expected_of_everything)


def test_every_technique_goes_on_after_a_restart(expected_of_everything):
    got = batches(everything().dataset(first_step=3), 5)
    assert_same(got, expected_of_everything[3:])


def test_soft_labels_are_those_of_the_mixed_images():
    # Each class has a colour of its own, which shows in a mixed image as in its label.
    colours = np.uint8([[200, 0, 0], [0, 200, 0], [0, 0, 200]])
    labels = np.arange(30) % 3
    images = np.broadcast_to(colours[labels][:, None, None], (30, 6, 6, 3))
    source = sources.from_arrays(np.ascontiguousarray(images), labels)
    for options in ({"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}):
        data = pipeline.TrainingData(source, SEED, BATCH, mixing=mixing.build(**options))
        assert data.dataset().element_spec[1] == tf.TensorSpec([BATCH, 3], tf.float32)
        for mixed, soft in batches(data.dataset(), 3):
            # Pixels are rounded to 1 in 200.
            np.testing.assert_allclose(mixed.mean(axis=(1, 2)) / 200, soft, rtol=0, atol=0.003)
            assert (soft < 1).any()


def test_evaluation_can_give_one_hot_labels():
    data = pipeline.EvaluationData(numbered(COUNT), BATCH, one_hot=True)
    _, labels, weights = zip(*batches(data.dataset(), data.steps), strict=True)
    labels, weights = np.concatenate(labels), np.concatenate(weights)
    np.testing.assert_array_equal(labels[weights > 0], np.eye(COUNT))


@pytest.mark.parametrize(
    ("jit", "busy", "expected"),
    [("auto", True, True), ("auto", False, False), (True, False, True), (False, True, False)],
)
def test_jit_is_chosen(jit, busy, expected, log):
    assert pipeline.choose_jit(busy, jit=jit) is expected
    assert any("data.jit" in line for line in log.messages) is (jit == "auto")
