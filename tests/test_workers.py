"""Two real workers train together: what each sees, who writes, and how they stop."""

import json
import textwrap

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
from tfaccel import cli, distribution, log
log.to_terminal()
cli.start_tensorflow()
strategy = distribution.build(strategy="multiworker", timeout=600)
import keras
import numpy as np
import tensorflow as tf
import tfaccel
from tfaccel.errors import UserError

worker, _ = distribution.worker(strategy)
folder, found = Path(sys.argv[1]), {}
ids = np.arange(101, dtype=np.float32)[:, None]


class Total(keras.metrics.Metric):
    def __init__(self, power, **options):
        super().__init__(**options)
        self.power = power
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y_true, "float32") ** self.power))

    def result(self):
        return self.total


def model():
    with strategy.scope():
        keras.utils.set_random_seed(0)
        built = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        totals = [Total(power, name=f"power_{power}") for power in (0, 1, 2)]
        built.compile(keras.optimizers.SGD(1e-5), "mse", metrics=totals)
    return built


def batches(seed):
    data = tf.data.Dataset.from_tensor_slices((ids, ids))
    return data.shuffle(101, seed=seed).batch(10)


trained = model()
history = tfaccel.fit(trained, batches(3), epochs=2, validation_data=batches(4)).history
found["history"] = {name: values for name, values in history.items() if "power" in name}
found["predicted"] = tfaccel.predict(trained, ids).shape
found["weights"] = float(trained.get_weights()[0][0, 0])

with strategy.scope():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((1,))
    wide = keras.layers.Dense(64, activation="tanh", name="wide")(inputs)
    pruned = keras.Model(inputs, keras.layers.Dense(1)(wide))
    pruned.compile(keras.optimizers.SGD(1e-6), "mse")
pruner = tfaccel.pruning.prune(pruned, final_sparsity=0.75, layers={"dense*": 0.0})
tfaccel.fit(pruned, batches(3), epochs=4, callbacks=[pruner])
kernel = pruned.get_layer("wide").kernel.numpy()
found["kernel"] = kernel.ravel().tolist()

try:
    tfaccel.fit(model(), batches(worker))
except UserError as error:
    found["other_order"] = str(error)


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if worker == 1:
            self.model.stop_training = True


stopped = tfaccel.fit(
    model(),
    batches(3),
    epochs=50,
    callbacks=[
        Stop(),
        keras.callbacks.ModelCheckpoint(str(folder / f"by_{worker}.keras")),
    ],
    checkpoint_dir=folder / f"checkpoints_{worker}",
)
found["epochs"] = stopped.epoch
(folder / f"found_{worker}.json").write_text(json.dumps(found))
if worker == 1:
    raise RuntimeError("the second worker fails")
tfaccel.fit(model(), batches(3), epochs=10_000)
"""


@pytest.fixture(scope="module")
def outcome(fresh_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = fresh_python(
        *("-m", "tfaccel.launch", "--workers=2", "--grace=5", "--", script, folder), cwd=folder
    )
    found = [folder / f"found_{worker}.json" for worker in range(2)]
    assert all(path.exists() for path in found), done.stdout[-3000:] + done.stderr[-3000:]
    return folder, [json.loads(path.read_text()) for path in found], done


def test_every_example_once_an_epoch(outcome):
    # The number of examples, the sum of 0 to 100, and that of their squares.
    for found in outcome[1]:
        for name, total in (("power_0", 101), ("power_1", 5050), ("power_2", 338350)):
            assert found["history"][name] == [total, total]
            assert found["history"][f"val_{name}"] == [total, total]


def test_workers_end_with_the_same_weights_and_all_predictions(outcome):
    first, second = outcome[1]
    assert first["weights"] == second["weights"]
    assert first["predicted"] == second["predicted"] == [101, 1]


def test_pruned_weights_are_bit_equal_on_all_workers(outcome):
    first, second = (found["kernel"] for found in outcome[1])
    assert first == second
    assert sum(weight == 0 for weight in first) == 48  # 0.75 of 64.


def test_another_order_on_each_worker_is_refused(outcome):
    for found in outcome[1]:
        assert "first batch of the dataset differs between the workers" in found["other_order"]


def test_one_that_wants_to_stop_stops_all(outcome):
    assert [found["epochs"] for found in outcome[1]] == [[0], [0]]


def test_only_the_chief_writes(outcome):
    folder = outcome[0]
    assert [path.name for path in sorted(folder.glob("by_*"))] == ["by_0.keras"]
    assert not (folder / "checkpoints_1").exists()
    assert [path.name for path in (folder / "checkpoints_0").iterdir()] == ["step_000000011"]


def test_one_that_fails_ends_all_and_is_shown(outcome):
    done = outcome[2]
    assert done.returncode == 1
    assert "the second worker fails" in done.stderr + done.stdout
