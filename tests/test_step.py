import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfaccel import loop, replica_state, step
from tfaccel.data.pipeline import EvaluationData
from tfaccel.replicas import of

UPDATES = 4
# float32 sums in another order; half precisions also round each part of the batch
# apart: bfloat16 keeps 8 bits (2**-8 = 4e-3), float16 keeps 11 (2**-11 = 5e-4).
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 1e-2, "mixed_float16": 2e-3}


def trained(replicas=1, jit=False, accumulation=1, updates=UPDATES, data=None, **kwargs):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(**kwargs)
    training = step.TrainingStep(model, strategy, step.Options(jit, accumulation))
    iterator = tiny.iterator(data or tiny.training(), strategy)
    training.trace(iterator)
    replica_state.separate_dropout(model, of(strategy))
    training(iterator, updates)
    return model


def plain_keras(updates=UPDATES, **kwargs):
    """The same updates by Keras's own train_on_batch, with the mean of its logs."""
    model = tiny.model(**kwargs)
    batches = tiny.training().dataset().take(updates)
    logs = [model.train_on_batch(x, y, return_dict=True) for x, y in batches]
    model.mean_logs = {name: np.mean([log[name] for log in logs]) for name in logs[0]}
    return model


def assert_same(model, expected, tolerance):
    for got, want in zip(tiny.weights(model), tiny.weights(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("replicas", "jit", "accumulation"),
    # Every pair of values; tests/gauntlet has the other levers, too.
    [(1, False, 1), (1, True, 2), (2, True, 1), (2, False, 2), (4, True, 1), (4, False, 2)],
)
def test_any_replicas_and_micro_steps_train_as_plain_keras(replicas, jit, accumulation):
    kwargs = {"norm": keras.layers.LayerNormalization()}
    expected = plain_keras(norm=keras.layers.LayerNormalization())
    model = trained(replicas, jit, accumulation, **kwargs)
    assert_same(model, expected, TOLERANCE["float32"])
    logs = {name: float(value) for name, value in model.get_metrics_result().items()}
    assert logs == pytest.approx(expected.mean_logs, abs=1e-5)


@pytest.mark.parametrize(
    ("policy", "replicas", "jit", "accumulation"),
    [
        ("mixed_bfloat16", 1, False, 2),
        ("mixed_bfloat16", 2, False, 1),
        ("mixed_float16", 1, True, 2),
        ("mixed_float16", 2, False, 1),
        ("mixed_float16", 2, True, 2),
    ],
)
def test_half_precision_trains_as_plain_keras(policy, replicas, jit, accumulation):
    expected = plain_keras(policy=policy)
    model = trained(replicas, jit, accumulation, policy=policy)
    assert_same(model, expected, TOLERANCE[policy])


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize(
    "clip", [{"global_clipnorm": 0.1}, {"clipnorm": 0.05}, {"clipvalue": 0.01}]
)
def test_clipping_comes_after_the_reduction(replicas, clip):
    def optimizer():
        return keras.optimizers.SGD(0.05, **clip)

    free = plain_keras(optimizer=keras.optimizers.SGD(0.05))
    expected = plain_keras(optimizer=optimizer())
    assert np.abs(expected.get_weights()[0] - free.get_weights()[0]).max() > 1e-3
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(optimizer=optimizer())
    step.TrainingStep(model, strategy)(tiny.iterator(tiny.training(), strategy), UPDATES)
    assert_same(model, expected, TOLERANCE["float32"])


@pytest.mark.parametrize(("replicas", "accumulation"), [(2, 1), (2, 2), (4, 1)])
def test_replicas_times_micro_steps_is_what_batch_norm_sees(replicas, accumulation):
    parts = replicas * accumulation
    expected = trained(1, accumulation=parts, norm=keras.layers.BatchNormalization())
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(norm=keras.layers.BatchNormalization())
    training = step.TrainingStep(model, strategy, step.Options(accumulation=accumulation))
    training(tiny.iterator(tiny.training(), strategy), UPDATES)
    for got, want in zip(model.trainable_variables, expected.trainable_variables, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=1e-5)


def local_values(strategy, variable):
    return [v.numpy() for v in strategy.experimental_local_results(variable.value)]


def test_batch_norm_statistics_become_the_mean_of_the_replicas():
    strategy = tiny.strategy(2)
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        model = tiny.model(norm=norm)
    step.TrainingStep(model, strategy)(tiny.iterator(tiny.training(), strategy), UPDATES)
    first, second = local_values(strategy, norm.moving_mean)
    assert np.abs(first - second).max() > 1e-4
    replica_state.MovingStatistics(model, of(strategy)).average()
    for value in local_values(strategy, norm.moving_mean):
        np.testing.assert_allclose(value, (first + second) / 2, rtol=0, atol=1e-7)


def test_statistics_that_agree_keep_their_exact_value():
    # 1/3 + 1/3 + 1/3 rounds, so a plain mean over 3 replicas would change it.
    strategy = tiny.strategy(3)
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        model = tiny.model(norm=norm)
    value = np.float32(np.random.default_rng(0).random(6))
    norm.moving_mean.assign(value)
    replica_state.MovingStatistics(model, of(strategy)).average()
    for local in local_values(strategy, norm.moving_mean):
        np.testing.assert_array_equal(local, value)


def test_dropout_masks_differ_between_replicas():
    strategy = tiny.strategy(2)
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=7)
        model = tiny.model(norm=layer)
    replica_state.separate_dropout(model, of(strategy))
    masks = strategy.run(tf.function(lambda: layer(tf.ones((1000,)), training=True)))
    first, second = (mask.numpy() > 0 for mask in strategy.experimental_local_results(masks))
    # Two independent fair masks agree in 500 of 1,000 places, 3 sigma = 47.
    assert 453 <= np.sum(first == second) <= 547
    for mask in (first, second):
        assert 453 <= mask.sum() <= 547


def test_the_first_replica_keeps_the_saved_dropout_state():
    strategy = tiny.strategy(2)
    with strategy.scope():
        model = tiny.model(dropout=0.5)
    (state,) = replica_state.seed_states(model)
    before = state.numpy()
    replica_state.separate_dropout(model, of(strategy))
    first, second = local_values(strategy, state)
    np.testing.assert_array_equal(first, before)
    assert second[0] != first[0]
    assert second[1] == first[1]


@pytest.mark.parametrize(("replicas", "jit"), [(1, False), (1, True), (2, False), (2, True)])
def test_dropout_training_repeats_bit_for_bit(replicas, jit):
    first, second = (trained(replicas, jit, dropout=0.3) for _ in range(2))
    assert_same(first, second, 0)


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_infinity_on_the_last_replica_skips_the_update_everywhere(replicas, accumulation):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(policy="mixed_float16")
    size = 8 // replicas
    images = np.random.default_rng(0).random((3, 8, 8, 8, 3), np.float32)
    images[1, -1] = np.inf

    def batches(context=None):
        parts = images.reshape(-1, size, 8, 8, 3)
        labels = np.zeros((len(parts), size), np.int32)
        return tf.data.Dataset.from_tensor_slices((parts, labels)).repeat()

    if replicas > 1:
        iterator = iter(strategy.distribute_datasets_from_function(batches))
    else:
        iterator = iter(batches())
    training = step.TrainingStep(model, strategy, step.Options(accumulation=accumulation))
    training(iterator, 1)
    before = [local_values(strategy, v) for v in model.trainable_variables]
    scale = float(model.optimizer.dynamic_scale.numpy())
    training(iterator, 1)
    after = [local_values(strategy, v) for v in model.trainable_variables]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert float(model.optimizer.dynamic_scale.numpy()) == scale / 2
    training(iterator, 1)
    assert np.all(np.isfinite(model.get_weights()[0]))
    changed = local_values(strategy, model.trainable_variables[0])
    assert np.abs(np.array(changed) - after[0]).max() > 0
    for value in changed:
        np.testing.assert_array_equal(value, changed[0])


def test_any_number_of_steps_reuses_one_graph_and_equals_single_steps():
    strategy = tiny.strategy(1)
    models = [tiny.model(dropout=0.3) for _ in range(2)]
    many, single = (step.TrainingStep(model, strategy) for model in models)
    iterators = [tiny.iterator(tiny.training(), strategy) for _ in range(2)]
    for count in (1, 3, 2):
        many(iterators[0], count)
    for _ in range(6):
        single(iterators[1], 1)
    assert_same(*models, 0)
    assert many._steps.experimental_get_tracing_count() == 1


def test_the_optimizer_reduces_again_after_our_step():
    strategy = tiny.strategy(2)
    with strategy.scope():
        model = tiny.model()
    step.TrainingStep(model, strategy)(tiny.iterator(tiny.training(), strategy), 1)
    assert "_all_reduce_sum_gradients" not in vars(model.optimizer)


def test_keras_still_reduces_through_the_private_name_we_switch_off():
    # tfaccel.step._already_reduced stands on this; if it fails, Keras has changed.
    model, calls = tiny.model(), []
    original = model.optimizer._all_reduce_sum_gradients
    model.optimizer._all_reduce_sum_gradients = lambda pairs: calls.append(1) or original(pairs)
    x, y = next(iter(tiny.training().dataset()))
    model.train_on_batch(x, y)
    assert calls


def test_without_switching_it_off_two_replicas_would_sum_twice():
    strategy = tiny.strategy(2)
    with strategy.scope():
        model = tiny.model(optimizer=keras.optimizers.SGD(1.0))
    model.optimizer.build(model.trainable_variables)
    before = model.get_weights()[0]
    variables = model.trainable_variables

    def apply():
        model.optimizer.apply([tf.ones(v.shape) for v in variables], variables)

    strategy.run(tf.function(apply))
    np.testing.assert_allclose(before - model.get_weights()[0], 2.0, atol=1e-6)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_unused_variable_is_left_alone_as_in_keras(accumulation):
    inputs = keras.Input((8, 8, 3))
    used = keras.layers.Dense(4)(keras.layers.Flatten()(inputs))
    unused = keras.layers.Dense(4, name="unused")(keras.layers.Flatten()(inputs))
    outputs = keras.layers.Lambda(lambda pair: pair[0])([used, unused])
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.1, weight_decay=0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    before = model.get_layer("unused").get_weights()[0]
    strategy = tiny.strategy(1)
    training = step.TrainingStep(model, strategy, step.Options(accumulation=accumulation))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        training(tiny.iterator(tiny.training(), strategy), 2)
    np.testing.assert_array_equal(model.get_layer("unused").get_weights()[0], before)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_seventeen_examples_evaluate_to_their_plain_mean(replicas, jit):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(norm=keras.layers.BatchNormalization())
    source = tiny.source(count=17)
    logs = loop.evaluate(
        model, EvaluationData(source, 8, tiny.unit), strategy=strategy, jit=jit
    )
    logits = model(source.images / np.float32(255), training=False).numpy()
    chosen = logits[np.arange(17), source.labels]
    losses = np.log(np.exp(logits).sum(axis=1)) - chosen
    penalty = 1e-2 * np.sum(model.get_layer("dense").get_weights()[0] ** 2)
    assert logs["loss"] == pytest.approx(losses.mean() + penalty, abs=1e-5)
    assert logs["accuracy"] == pytest.approx(
        np.mean(logits.argmax(axis=1) == source.labels), abs=1e-6
    )


def test_evaluation_changes_nothing():
    strategy = tiny.strategy(2)
    with strategy.scope():
        model = tiny.model(norm=keras.layers.BatchNormalization(), dropout=0.5)
    before = [v.numpy() for v in model.variables]
    loop.evaluate(model, tiny.evaluation(), strategy=strategy)
    metrics = {id(v) for v in model.metrics_variables}
    for variable, value in zip(model.variables, before, strict=False):
        if id(variable) not in metrics:
            np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize(("asked", "expected"), [("auto", False), (True, True), (False, False)])
def test_jit_is_honoured_and_auto_leaves_it_off(asked, expected):
    assert step.choose(jit=asked, accumulation=3) == step.Options(expected, 3)
