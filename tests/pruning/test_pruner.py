"""Pruning while training: in our loop, in Keras's own fit, whatever else is switched on."""

import gzip
import subprocess
import sys
from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfaccel import loop, plan, pruning, step
from tfaccel.checkpoint import Checkpointer
from tfaccel.errors import UserError
from tfaccel.plan import Plan

# 32 examples in batches of 8: four steps an epoch, twelve in all.
LENGTH = plan.build(32, duration="3ep", global_batch_size=8, log_every="0st")
OPTIONS = {"final_sparsity": 0.8, "begin": "1st", "end": "7st", "frequency": "2st"}


def fit(model, callbacks, length=LENGTH, **kwargs):
    validation = tiny.evaluation(count=16, seed=1)
    training = tiny.training(count=32)
    return loop.fit(
        model, training, length, validation=validation, callbacks=callbacks, **kwargs
    )


def keras_fit(model, callbacks, epochs=3, **kwargs):
    x, y, _ = next(iter(tiny.evaluation(count=16, seed=1).dataset().unbatch().batch(16)))
    return model.fit(
        tiny.training(count=32).dataset(),
        epochs=epochs,
        steps_per_epoch=4,
        validation_data=(x, y),
        callbacks=callbacks,
        verbose=0,
        **kwargs,
    )


def zeros(model):
    return {t["name"]: t["zeros"] for t in pruning.sparsity(model)["tensors"]}


# conv has 3 x 3 x 3 x 6 = 162 weights and keeps round(32.4) = 32; dense has 9 x 6 x 4 = 216
# and keeps round(43.2) = 43.
PRUNED = {"conv/kernel": 162 - 32, "dense/kernel": 216 - 43}


class Zeros(keras.callbacks.Callback):
    """Notes how many weights are zero after each call of the compiled step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(zeros(self.model)["conv/kernel"])


def test_sparsity_follows_the_schedule_at_the_very_steps(monkeypatch):
    model = tiny.model()
    pruner = pruning.prune(model, LENGTH, **OPTIONS)
    noted = Zeros()
    monkeypatch.setattr(loop, "_CALL_SECONDS", 0)
    fit(model, [pruner, noted])
    # TFMOT: 0.8 - 0.8 * (1 - (step - 1) / 6) ** 3 at steps 1, 3, 5, 7.
    expected = [0.0, 0.8 - 0.8 * (2 / 3) ** 3, 0.8 - 0.8 / 27, 0.8]
    counts = [162 - round(162 * (1 - sparsity)) for sparsity in expected]
    a, b, c, d = counts
    assert noted.seen == [a, a, b, b, c, c, d, d, d, d, d, d]
    assert zeros(model) == PRUNED


def test_compiled_calls_are_cut_where_masks_change(monkeypatch):
    model = tiny.model()
    pruner = pruning.prune(model, LENGTH, **OPTIONS)
    starts = []
    monkeypatch.setattr(loop, "_CALL_SECONDS", 1e9)
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: starts.append(batch)
    )
    fit(model, [pruner, note])
    # Updates at 1, 3, 5 and 7; epochs of four steps.
    assert starts == [0, 1, 3, 0, 1, 3, 0]


@pytest.mark.parametrize("compiled", ["before", "after", "trained before"])
def test_alone_in_keras_own_fit(compiled):
    model = tiny.model()
    if compiled == "trained before":
        keras_fit(model, [], epochs=1)
    pruner = pruning.prune(model, **OPTIONS)
    if compiled == "after":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
    keras_fit(model, [pruner])
    assert zeros(model) == PRUNED
    assert pruner.at_target
    pruner.verify()


def test_both_loops_prune_alike():
    ours, theirs = tiny.model(), tiny.model()
    fit(ours, [pruning.prune(ours, **OPTIONS)])
    keras_fit(theirs, [pruning.prune(theirs, **OPTIONS)])
    for got, want in zip(tiny.weights(ours), tiny.weights(theirs), strict=True):
        # float32 sums in another order.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_steps_per_execution_and_xla_in_keras_own_fit():
    model = tiny.model()
    model.compile(
        "sgd", "sparse_categorical_crossentropy", steps_per_execution=4, jit_compile=True
    )
    keras_fit(model, [pruning.prune(model, **OPTIONS)])
    assert zeros(model) == PRUNED


def test_keras_average_of_weights_is_masked_at_the_end():
    optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9)
    model = tiny.model(optimizer=optimizer)
    keras_fit(model, [pruning.prune(model, **OPTIONS)])
    assert zeros(model) == PRUNED


def test_a_fit_of_unknown_length_asks_for_it():
    model = tiny.model()
    pruner = pruning.prune(model, **OPTIONS)
    endless = tf.data.Dataset.from_generator(
        lambda: iter(tiny.training(count=32).dataset().take(4)),
        output_signature=tiny.training(count=32).dataset().element_spec,
    )
    with pytest.raises(UserError, match=r"give model\.fit steps_per_epoch, or prune a plan"):
        model.fit(endless, epochs=1, callbacks=[pruner], verbose=0)


def test_several_calls_of_fit_go_on():
    model = tiny.model()
    pruner = pruning.prune(model, Plan(12, Fraction(4)), **OPTIONS)
    keras_fit(model, [pruner], epochs=1)
    assert not pruner.at_target
    keras_fit(model, [pruner], epochs=2)
    assert zeros(model) == PRUNED


def test_a_pruned_model_that_trains_on_from_a_later_epoch_keeps_its_zeros():
    model = tiny.model()
    keras_fit(model, [pruning.prune(model, **OPTIONS)])
    before = [kernel == 0 for kernel in tiny.weights(model)]
    restarted = keras.models.clone_model(model)
    restarted.set_weights(model.get_weights())
    restarted.compile("adam", "sparse_categorical_crossentropy")
    pruner = pruning.prune(restarted, **OPTIONS)
    keras_fit(restarted, [pruner], epochs=4, initial_epoch=3)
    after = [kernel == 0 for kernel in tiny.weights(restarted)]
    np.testing.assert_array_equal(before[0], after[0])
    assert zeros(restarted) == PRUNED


@pytest.mark.parametrize(
    ("replicas", "policy", "jit", "accumulation"),
    [
        (1, "float32", True, 2),
        (1, "mixed_bfloat16", False, 1),
        (1, "mixed_float16", True, 1),
        (2, "float32", False, 2),
        (2, "mixed_bfloat16", True, 1),
        (2, "mixed_float16", True, 2),
        (4, "float32", True, 1),
        (4, "mixed_bfloat16", False, 2),
        (4, "mixed_float16", False, 1),
    ],
)
def test_every_combination_reaches_the_target_with_equal_masks(
    replicas, policy, jit, accumulation
):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(policy=policy, norm=keras.layers.BatchNormalization(), dropout=0.2)
    pruner = pruning.prune(model, LENGTH, **OPTIONS)
    fit(model, [pruner], strategy=strategy, options=step.Options(jit, accumulation))
    assert zeros(model) == PRUNED
    for kernel in pruner.kernels:
        kept = kernel.weight.constraint.kept.value
        masks = [m.numpy() for m in strategy.experimental_local_results(kept)]
        weights = [w.numpy() for w in strategy.experimental_local_results(kernel.weight.value)]
        assert len(masks) == len(weights) == replicas
        for mask, weight in zip(masks, weights, strict=True):
            np.testing.assert_array_equal(mask, masks[0])
            np.testing.assert_array_equal(weight, weights[0])
            np.testing.assert_array_equal(weight != 0, mask)


def test_one_and_two_replicas_prune_the_same_weights():
    models = []
    for replicas in (1, 2):
        strategy = tiny.strategy(replicas)
        with strategy.scope():
            model = tiny.model()
        fit(model, [pruning.prune(model, LENGTH, **OPTIONS)], strategy=strategy)
        models.append(model)
    for got, want in zip(*map(tiny.weights, models), strict=True):
        np.testing.assert_array_equal(got == 0, want == 0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_skipped_step_right_after_an_update_leaves_weights_masked(replicas):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(policy="mixed_float16")
    pruner = pruning.prune(
        model, Plan(4, Fraction(4)), final_sparsity=0.8, begin="1st", end="2st"
    )
    images = np.random.default_rng(0).random((8, 8, 8, 8, 3), np.float32)
    images[2, -1] = np.inf  # the step after the last update

    def batches(context=None):
        parts = images.reshape(-1, 8 // replicas, 8, 8, 3)
        return tf.data.Dataset.from_tensor_slices((parts, np.zeros(parts.shape[:2], np.int32)))

    distributed = strategy.distribute_datasets_from_function
    iterator = iter(distributed(batches) if replicas > 1 else batches())
    training = step.TrainingStep(model, strategy)
    for batch in range(4):
        pruner.on_train_batch_begin(batch)
        training(iterator, 1)
        pruner.on_train_batch_end(batch)
        if batch >= 1:
            assert zeros(model) == PRUNED
    assert int(model.optimizer.iterations.numpy()) == 3
    assert np.all(np.isfinite(model.get_weights()[0]))


@pytest.mark.parametrize(
    ("stop_at", "replicas", "changed"),
    [
        (4, 1, {}),
        (9, 2, {}),
        # An update before the first step must not come again at the restart.
        (5, 1, {"begin": "0st", "initial_sparsity": 0.5}),
    ],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(stop_at, replicas, changed, tmp_path):
    from test_loop import Kill, everything

    strategy = tiny.strategy(replicas)

    def run(folder, *more):
        with strategy.scope():
            model = tiny.model(dropout=0.3)
        pruner = pruning.prune(model, LENGTH, **{**OPTIONS, **changed})
        saving = Checkpointer(folder, LENGTH, every="3st")
        fit(model, [pruner, *more], strategy=strategy, checkpointer=saving)
        return model

    whole = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", Kill(stop_at))
    resumed = run(tmp_path / "parts")
    for got, want in zip(everything(resumed), everything(whole), strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(pruning.masks(resumed), pruning.masks(whole), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_the_users_own_constraint_comes_before_the_mask():
    model = tiny.model()
    kernel = model.get_layer("dense").kernel
    kernel.constraint = keras.constraints.MaxNorm(0.5, axis=0)
    keras_fit(model, [pruning.prune(model, **OPTIONS)])
    assert zeros(model) == PRUNED
    assert np.linalg.norm(kernel.numpy(), axis=0).max() <= 0.5 + 1e-6


def test_pruning_a_model_twice_keeps_one_mask():
    model = tiny.model()
    pruning.prune(model, **OPTIONS)
    first = pruning.masks(model)
    keras_fit(model, [pruning.prune(model, **OPTIONS)])
    assert [id(mask) for mask in pruning.masks(model)] == [id(mask) for mask in first]
    assert zeros(model) == PRUNED


def test_nested_models_and_frozen_layers_are_pruned():
    inner = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(6, 3, name="inner_conv")], name="inner"
    )
    inner.trainable = False
    head = keras.layers.Dense(4, name="head")
    model = keras.Sequential([inner, keras.layers.Flatten(), head])
    model.compile("sgd", "sparse_categorical_crossentropy")
    keras_fit(model, [pruning.prune(model, layers={"head": 0}, **OPTIONS)])
    found = {t["name"].split("/")[-2]: t["zeros"] for t in pruning.sparsity(model)["tensors"]}
    assert found == {"inner_conv": 162 - 32, "head": 0}


def test_a_global_threshold_reaches_the_target_over_all_kernels():
    model = tiny.model()
    keras_fit(model, [pruning.prune(model, threshold="global", **OPTIONS)])
    found = pruning.sparsity(model)
    assert found["zeros"] == 378 - round(378 * 0.2)
    assert found["tensors"][0]["sparsity"] != pytest.approx(0.8, abs=0.01)


def test_two_of_four_group_by_group_in_the_saved_file(tmp_path):
    model = tiny.model()
    options = {"final_sparsity": 0.5, "m_by_n": "2:4", "schedule": "constant"}
    pruner = pruning.prune(model, LENGTH, begin="2st", **options)
    fit(model, [pruner])
    pruner.verify()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    conv, dense = (loaded.get_layer(name).kernel.numpy() for name in ("conv", "dense"))
    # 3 input channels are a group that is one short: 2 are kept.
    assert np.all(np.count_nonzero(conv, axis=2) == 2)
    # 54 inputs: 13 groups of four, and two weights more.
    full, rest = dense[:52].reshape(13, 4, 4), dense[52:]
    assert np.all(np.count_nonzero(full, axis=1) == 2)
    assert np.all(rest != 0)


PLAIN = """
import sys, keras
model = keras.models.load_model(sys.argv[1])
assert not any(name.startswith("tfaccel") for name in sys.modules)
print(sum(int((w == 0).sum()) for w in model.get_weights()), model.layers[1].kernel.constraint)
"""


def test_what_a_stock_checkpoint_saves_loads_without_tfaccel(tmp_path):
    model = tiny.model()
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)
    pruner = pruning.prune(model, **OPTIONS)
    keras_fit(model, [pruner, *pruner.select(saving)])
    command = [sys.executable, "-c", PLAIN, str(tmp_path / "best.keras")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    count, constraint = done.stdout.split()
    assert int(count) >= sum(PRUNED.values())
    assert constraint == "None"


# Losses that rise: the first epoch, which is dense, would be the best.
class Rising(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = float(epoch)


@pytest.mark.parametrize("ours", [True, False])
def test_the_best_checkpoint_is_one_at_the_target(ours, tmp_path):
    model = tiny.model()
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)
    pruner = pruning.prune(model, LENGTH, **OPTIONS)
    callbacks = [pruner, Rising(), saving]
    if ours:
        fit(model, callbacks)
    else:
        pruner.select(saving)
        keras_fit(model, callbacks)
    # Epochs end at steps 4, 8 and 12; the target is due at step 7.
    assert saving.best == 1.0
    assert zeros(keras.models.load_model(tmp_path / "best.keras")) == PRUNED


def test_early_stopping_waits_for_the_target_and_restores_a_pruned_epoch():
    model = tiny.model()
    length = plan.build(32, duration="10ep", global_batch_size=8, log_every="0st")
    stopping = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    pruner = pruning.prune(model, length, **{**OPTIONS, "end": "15st"})
    fit(model, [pruner, Rising(), stopping], length)
    # The fourth epoch, at step 16, is the first that counts; the fifth is worse.
    assert (stopping.best_epoch, stopping.stopped_epoch) == (3, 4)
    pruner.verify()
    assert zeros(model) == PRUNED


def test_a_run_that_stops_before_its_target_says_so_with_the_numbers():
    model = tiny.model()
    pruner = pruning.prune(model, LENGTH, **OPTIONS)
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True)
    )
    fit(model, [pruner, stop])
    with pytest.raises(UserError) as error:
        pruner.verify()
    assert str(error.value) == (
        "the model does not have the sparsity 0.8 that was asked for (conv/kernel 0.5617, "
        "dense/kernel 0.5648): training stopped at step 4, before the target is due at step 7."
    )


def test_weights_that_somebody_changed_are_found_out():
    model = tiny.model()
    pruner = pruning.prune(model, LENGTH, **OPTIONS)
    fit(model, [pruner])
    kernel = model.get_layer("conv").kernel
    kernel.assign(np.ones(kernel.shape))
    with pytest.raises(UserError, match="something has changed the weights since"):
        pruner.verify()


def test_the_loops_own_length_is_what_counts():
    model = tiny.model()
    pruner = pruning.prune(model, Plan(1000, Fraction(4)), **{**OPTIONS, "end": "20st"})
    with pytest.raises(UserError, match=r"at step 12 sparsity would be 0\.71, asked 0.80"):
        fit(model, [pruner])
    assert int(model.optimizer.iterations.numpy()) == 0


def test_sizes_of_a_pruned_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    sizes = pruning.file_sizes(path)
    assert sizes["bytes"] == 100_000
    assert sizes["gzip_bytes"] == len(gzip.compress(bytes(100_000), 9))


def tensor(name, shape, zeros, weights):
    return {
        "name": name,
        "shape": shape,
        "zeros": zeros,
        "weights": weights,
        "sparsity": zeros / weights,
    }


def test_the_report_counts_all_kernels_pruned_or_not(log):
    model = tiny.model()
    keras_fit(model, [pruning.prune(model, layers={"conv": 0}, **OPTIONS)])
    found = pruning.log_sparsity(model)
    assert found == {
        "overall": 173 / 378,
        "zeros": 173,
        "weights": 378,
        "tensors": [
            tensor("conv/kernel", [3, 3, 3, 6], 0, 162),
            tensor("dense/kernel", [54, 4], 173, 216),
        ],
    }
    assert log.messages[-3:] == [
        "sparsity: 45.77 % of 378 prunable weights",
        "  conv/kernel     0.00 %             0 of          162",
        "  dense/kernel   80.09 %           173 of          216",
    ]


def test_values_beside_the_weights_are_masked_on_request():
    model = tiny.model()
    keras_fit(model, [pruning.prune(model, layers={"conv": 0}, **OPTIONS)])
    conv, dense = (model.get_layer(name).kernel for name in ("conv", "dense"))
    average = np.ones(dense.shape, np.float32)
    assert np.count_nonzero(pruning.masked(dense, average)) == 43
    assert pruning.masked(conv, average) is average
