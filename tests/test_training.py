"""`tfaccel.fit`, `evaluate` and `predict` against the methods of `keras.Model`."""

import gc
import importlib
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfaccel
from tfaccel import replicas as replicas_lib
from tfaccel import training
from tfaccel.errors import UserError

COUNT, BATCH = 29, 12  # The last batch of an epoch has 5 examples.
DEVICES = [(1, 1), (2, 3), (4, 1)]
# float32 sums in another order, over six updates.
TOLERANCE = 1e-5


def arrays(count=COUNT, seed=0):
    random = np.random.default_rng(seed)
    return random.random((count, 6), np.float32), random.integers(0, 3, count)


def batched(*values, size=BATCH):
    return tf.data.Dataset.from_tensor_slices(values).batch(size)


def dense(loss=None, outputs=3, **compiled):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(outputs)(x))
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled.setdefault("metrics", ["accuracy"])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, **compiled)
    return model


def two_outputs():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(5, activation="tanh")(inputs)
    outputs = {
        "kind": keras.layers.Dense(3, name="kind")(x),
        "size": keras.layers.Dense(1, name="size")(x),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05),
        loss={
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "size": keras.losses.MeanSquaredError(reduction="sum"),
        },
        loss_weights={"kind": 1.0, "size": 0.1},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    return model


def both(build, dataset, replicas, accumulation, epochs=2, **options):
    """Trains by Keras on one device and by us; returns both models and histories."""
    expected = build()
    history = expected.fit(dataset, epochs=epochs, verbose=0, **options)
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = build()
    ours = tfaccel.fit(model, dataset, epochs=epochs, accumulation=accumulation, **options)
    return expected, history.history, model, ours.history


def assert_same_training(expected, history, model, ours):
    for got, want in zip(tiny.weights(model), tiny.weights(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)
    assert list(ours) == list(history)
    for name, values in history.items():
        assert ours[name] == pytest.approx(values, abs=TOLERANCE), name


@pytest.mark.parametrize(("replicas", "accumulation"), DEVICES)
def test_fit_trains_and_logs_as_keras_does(replicas, accumulation):
    validation = batched(*arrays(17, seed=1), size=5)
    assert_same_training(
        *both(dense, batched(*arrays()), replicas, accumulation, validation_data=validation)
    )


@pytest.mark.parametrize(("replicas", "accumulation"), DEVICES)
@pytest.mark.parametrize("metrics", ["metrics", "weighted_metrics"])
def test_sample_weights_that_leave_a_replica_nothing(metrics, replicas, accumulation):
    x, y = arrays()
    weight = np.where(np.arange(COUNT) % BATCH < BATCH // 2, 0, 1.5).astype(np.float32)

    def build():
        return dense(**{"metrics": None, metrics: ["accuracy"]})

    assert_same_training(*both(build, batched(x, y, weight), replicas, accumulation))


@pytest.mark.parametrize(("replicas", "accumulation"), DEVICES)
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_losses_that_are_sums(reduction, replicas, accumulation):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)
        model.compile(keras.optimizers.SGD(0.01), loss)
        return model

    assert_same_training(*both(build, batched(*arrays()), replicas, accumulation))


@pytest.mark.parametrize(("replicas", "accumulation"), DEVICES)
def test_two_outputs_one_a_mean_and_one_a_sum(replicas, accumulation):
    x, y = arrays()
    targets = {"kind": y, "size": x[:, :1]}
    dataset = tf.data.Dataset.from_tensor_slices((x, targets)).batch(BATCH)
    assert_same_training(*both(two_outputs, dataset, replicas, accumulation))


@pytest.mark.parametrize(("replicas", "accumulation"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("labels", ["whole", "column", "one_hot"])
def test_class_weights(labels, replicas, accumulation):
    x, y = arrays()
    loss = None
    if labels == "column":
        y = y[:, None]
    if labels == "one_hot":
        y = np.eye(3, dtype=np.float32)[y]
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    weights = {0: 0.5, 2: 3.0}  # Class 1 has weight 1, as in Keras.
    assert_same_training(
        *both(
            lambda: dense(loss),
            batched(x, y),
            replicas,
            accumulation,
            class_weight=weights,
        )
    )


def test_steps_per_epoch_goes_on_in_the_dataset_as_keras_does():
    dataset = batched(*arrays()).repeat()
    assert_same_training(*both(dense, dataset, 2, 1, epochs=3, steps_per_epoch=2))


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("jit", [False, True])
def test_seventeen_examples_evaluate_to_their_plain_mean(jit, replicas):
    x, y = arrays(17)
    expected = dense().evaluate(x, y, batch_size=17, verbose=0, return_dict=True)
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = dense()
    got = tfaccel.evaluate(model, batched(x, y, size=8), jit=jit)
    # The plain mean; float32 sums in another order.
    assert got == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_predictions_come_in_the_order_of_the_input(replicas):
    x, y = arrays(17)
    expected = dense().predict(x, verbose=0)
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = dense()
    for given in (x, (x, y), batched(x, y, size=8), batched(x, size=8)):
        got = tfaccel.predict(model, given)
        assert got.shape == (17, 3)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_predictions_keep_the_structure_of_the_outputs():
    model = two_outputs()
    got = tfaccel.predict(model, arrays(17)[0])
    assert {name: value.shape for name, value in got.items()} == {
        "kind": (17, 3),
        "size": (17, 1),
    }


def test_arrays_take_every_example_once_an_epoch_in_another_order():
    x, y = np.arange(COUNT, dtype=np.float32)[:, None], np.zeros((COUNT, 1), np.float32)
    seen = []
    dataset = training._as_dataset((x, y), 10, seed=4).repeat(2)
    for batch, _ in dataset:
        seen.extend(batch.numpy().ravel())
    first, second = seen[:COUNT], seen[COUNT:]
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second


def test_fit_goes_on_from_its_checkpoint_and_says_what_is_not_exact(tmp_path, log):
    dataset = batched(*arrays())
    whole = dense()
    tfaccel.fit(whole, dataset, epochs=3)
    tfaccel.fit(dense(), dataset, epochs=2, checkpoint_dir=tmp_path)
    assert not any("not exactly" in line for line in log.messages)
    resumed = dense()
    history = tfaccel.fit(resumed, dataset, epochs=3, checkpoint_dir=tmp_path)
    assert history.epoch == [0, 1, 2]  # History, too, goes on.
    assert len(history.history["loss"]) == 3
    assert any("not exactly the uninterrupted one" in line for line in log.messages)
    # This dataset has one order only, so here it is the uninterrupted one.
    for got, want in zip(tiny.weights(resumed), tiny.weights(whole), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_model_after_the_other_is_let_go_without_warnings(replicas, caplog):
    strategy, gone = tiny.strategy(replicas), []
    x, y = tiny.source(count=16).images, np.zeros(16, np.int64)
    data = batched(x.astype(np.float32), y, size=8)
    for _ in range(5):  # TensorFlow warns from the fifth that is traced on.
        with replicas_lib.of(strategy).scope():
            model = tiny.model(norm=keras.layers.BatchNormalization(), dropout=0.1)
        tfaccel.fit(model, data, strategy=strategy)
        tfaccel.evaluate(model, data, strategy=strategy)
        tfaccel.predict(model, data, strategy=strategy)
        gone.append(weakref.ref(model))
        del model
        gc.collect()
    assert [model() for model in gone] == [None] * 5
    assert [r.message for r in caplog.records if "retracing" in r.message] == []


def test_our_own_data_goes_through_fit_too():
    model = tiny.model()
    history = tfaccel.fit(
        model, tiny.training(), epochs=2, validation_data=tiny.evaluation(seed=1)
    )
    assert list(history.history) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert int(model.optimizer.iterations) == 12  # 48 examples in batches of 8, twice.


def test_a_subclassed_model_is_built_from_the_first_batch():
    class Small(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(3)

        def call(self, x):
            return self.layer(x)

    model = Small()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tfaccel.fit(model, batched(*arrays()))
    assert model.layer.kernel.shape == (6, 3)


def test_the_commands_module_does_not_hide_the_function():
    importlib.import_module("tfaccel.evaluate")
    x, y = arrays()
    assert set(tfaccel.evaluate(dense(), (x, y))) == {"accuracy", "loss"}


def refused(match, model, dataset, **options):
    with pytest.raises(UserError, match=match):
        tfaccel.fit(model, dataset, **options)


def test_what_cannot_be_trained_is_refused():
    x, y = arrays()
    data = batched(x, y)
    refused("not compiled", keras.Sequential([keras.Input((6,))]), data)
    refused("an empty dataset", dense(), data.take(0))
    refused("without end", dense(), data.repeat())
    refused("expected batches", dense(), data.unbatch())
    refused("type list", dense(), [[1.0]])
    refused("29, 28 examples|28, 29 examples", dense(), (x, y[:-1]))
    refused("expected a tf.distribute", dense(), data, strategy="two")
    refused("not made in its scope", dense(), data, strategy=tiny.strategy(2))
    accumulating = dense()
    accumulating.optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    refused("accumulation=...", accumulating, data)
    averaging = dense()
    averaging.optimizer = keras.optimizers.SGD(use_ema=True)
    refused("ema=", averaging, data)
    refused("class_weight and sample", dense(), batched(x, y, x[:, 0]), class_weight={0: 2.0})
    refused("TrainingData", tiny.model(), tiny.training(), class_weight={0: 2.0})


def test_a_mean_over_sample_weights_is_refused_where_batches_are_split():
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    refused("sum_over_batch_size", dense(loss), batched(*arrays()), accumulation=2)
    tfaccel.fit(dense(loss), batched(*arrays()))


def test_a_model_with_a_step_of_its_own_is_refused():
    class Own(keras.Model):
        def train_step(self, data):
            return {}

    inputs = keras.Input((6,))
    model = Own(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", "mse")
    refused("its own train_step", model, batched(*arrays()))
