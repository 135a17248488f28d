"""Throughput, DeviceMemory, LearningRateLogger and GradientNorms, in both loops."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from both import both, ours, stock

from tfaccel import callbacks, loop, plan
from tfaccel.callbacks import device_memory
from tfaccel.checkpoint import Checkpointer


@both
def test_measurements_stand_in_the_history(fit, monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 0)
    added = [
        callbacks.Throughput(8, devices=2),
        callbacks.DeviceMemory(),
        callbacks.LearningRateLogger(),
    ]
    history = fit(tiny.model(), added).history
    names = {"images_per_second", "images_per_second_per_device", "host_memory_bytes"}
    assert names | {"learning_rate"} <= set(history)
    assert history["learning_rate"] == pytest.approx([0.05, 0.05])
    for whole, part in zip(
        history["images_per_second"], history["images_per_second_per_device"], strict=True
    ):
        assert part == whole / 2
    # TensorFlow alone takes more than 100 MiB, and this is no large machine.
    assert all(100 * 2**20 < value < 2**40 for value in history["host_memory_bytes"])


def throughput(**kwargs):
    """Two steps of 8 images in half a second."""
    measured = callbacks.Throughput(8, **kwargs)
    measured.images, measured.seconds = 16, 0.5
    return measured


def test_throughput_says_how_well_devices_are_used():
    summary = throughput(devices=2, flops_per_image=1e6, peak_flops_per_second=32e6).summary()
    assert summary == {
        "images_per_second": 32.0,
        "images_per_second_per_device": 16.0,
        "devices": 2,
        "flops_per_image": 1e6,
        "flops_per_second": 32e6,
        "peak_flops_per_second": 64e6,
        "mfu": 0.5,
    }


def test_throughput_of_an_unknown_chip_has_no_mfu():
    summary = throughput(flops_per_image=1e6).summary()
    assert (summary["flops_per_second"], summary["mfu"]) == (32e6, None)
    assert "mfu" not in throughput().latest()


def test_throughput_before_it_knows_anything():
    summary = callbacks.Throughput(8, flops_per_image=1e6, peak_flops_per_second=1e9).summary()
    assert [summary[name] for name in ("images_per_second", "flops_per_second", "mfu")] == [
        None
    ] * 3


def test_throughput_knows_the_time_left():
    assert throughput(total_steps=100, first_step=20).seconds_left == 80 * 8 / 32
    assert throughput().seconds_left is None


def test_memory_of_gpus_is_that_of_tensorflows_allocator(monkeypatch):
    # What a machine with two GPUs answers.
    books = {"GPU:0": {"current": 5, "peak": 9}, "GPU:1": {"current": 6, "peak": 7}}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: list(books))
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", books.__getitem__)
    memory = callbacks.DeviceMemory()
    found = memory.latest()
    assert found.pop("host_memory_bytes") == memory.peak_host_bytes
    assert found == {
        "gpu0_memory_bytes": 5,
        "gpu0_peak_memory_bytes": 9,
        "gpu1_memory_bytes": 6,
        "gpu1_peak_memory_bytes": 7,
    }
    assert memory.peak_gpu_bytes == [9, 7]


def test_memory_is_looked_up_ten_times_a_second_at_most(monkeypatch):
    looks, now = [], [0.0]
    monkeypatch.setattr(device_memory.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(
        device_memory.host, "process_memory_bytes", lambda: looks.append(now[0]) or 2**20
    )
    memory = callbacks.DeviceMemory()
    for now[0] in (5.0, 5.05, 5.11, 5.12, 5.25):
        assert memory.latest() == {"host_memory_bytes": 2**20}
    assert looks == [5.0, 5.11, 5.25]


@both
def test_the_learning_rate_of_a_schedule_is_that_of_the_next_step(fit):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.08, 8, end_learning_rate=0.0)
    model = tiny.model(optimizer=keras.optimizers.SGD(schedule))
    history = fit(model, [callbacks.LearningRateLogger()])
    assert history.history["learning_rate"] == pytest.approx([0.04, 0.0], rel=1e-6)


def first_norms():
    """The norms of the first batch's gradients, computed by hand."""
    model = tiny.model()
    x, y = next(iter(tiny.training(count=32).dataset()))
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    layers = {"conv": gradients[:2], "dense": gradients[2:]}
    return {f"gradient_norm/{name}": tf.linalg.global_norm(g) for name, g in layers.items()}


class First(keras.callbacks.Callback):
    """Keeps what the norms were after the first step."""

    def __init__(self, norms):
        super().__init__()
        self.norms, self.kept = norms, None

    def on_train_batch_end(self, batch, logs=None):
        self.kept = self.kept or self.norms.latest()


@both
def test_gradient_norms_are_those_of_the_gradients(fit):
    norms = callbacks.GradientNorms(every=1)
    first = First(norms)
    history = fit(tiny.model(), [norms, first])
    assert set(first.kept) == set(first_norms())
    for name, expected in first_norms().items():
        # The same sums in float32, in another order.
        assert first.kept[name] == pytest.approx(float(expected), rel=1e-5)
        assert len(history.history[name]) == 2


@pytest.mark.parametrize(
    ("replicas", "policy", "tolerance"),
    # 16-bit gradients are rounded to about 1e-3 (float16) of their size.
    [(2, "float32", 1e-5), (1, "mixed_float16", 1e-2), (2, "mixed_float16", 1e-2)],
)
def test_gradient_norms_are_of_the_global_batch_and_unscaled(replicas, policy, tolerance):
    strategy = tiny.strategy(replicas)
    with strategy.scope():
        model = tiny.model(policy=policy)
    norms = callbacks.GradientNorms(every=1)
    first = First(norms)
    ours(model, [norms, first], strategy=strategy)
    for name, expected in first_norms().items():
        assert first.kept[name] == pytest.approx(float(expected), rel=tolerance)


@both
def test_gradient_norms_change_nothing_and_leave_the_optimizer_alone(fit):
    models = tiny.model(), tiny.model()
    fit(models[0], [callbacks.GradientNorms(every=3)])
    fit(models[1], [])
    for got, want in zip(*map(tiny.weights, models), strict=True):
        np.testing.assert_array_equal(got, want)
    assert "apply" not in vars(models[0].optimizer)


def test_gradient_norms_are_read_only_where_they_are_due(monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 1e9)
    norms, seen = callbacks.GradientNorms(every=3), []
    kept = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((batch, bool(norms.latest())))
    )
    ours(tiny.model(), [norms, kept])
    # Steps 1, 3, 4 | 6, 8; the third is the first that is due.
    assert seen == [(0, False), (2, True), (3, True), (1, True), (3, True)]


def test_gradient_norms_in_a_second_fit_of_the_same_model():
    model = tiny.model()
    stock(model, [])
    norms = callbacks.GradientNorms(every=4)
    stock(model, [norms])
    assert all(np.isfinite(value) for value in norms.latest().values())
    assert len(norms.latest()) == 2


def test_what_throughput_has_seen_survives_a_restart(tmp_path):
    from test_loop import Kill

    length = plan.build(32, duration="2ep", global_batch_size=8)

    def run(kill=()):
        measured = callbacks.Throughput(8)
        saving = Checkpointer(tmp_path, length, every="2st")
        loop.fit(
            tiny.model(),
            tiny.training(count=32),
            length,
            callbacks=[measured, *kill],
            checkpointer=saving,
        )
        return measured

    with pytest.raises(KeyboardInterrupt):
        run([Kill(7)])
    # Steps 2 to 6 of the first start, 8 of the second; each left its first call out.
    assert run().images == (5 + 1) * 8
