"""Two real workers of Horovod, where it is installed; see docs/horovod.md.

The slow test fails where it is not: it is run on request only, python -m pytest -m slow
tests/test_horovod.py.
"""

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

from tfaccel import horovod
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False
SCRIPT = Path(__file__).parents[1] / "scripts" / "install_horovod.sh"
MISSING = (
    "build it with scripts/install_horovod.sh, or use NVIDIA's TensorFlow images, which carry "
    "it."
)


@pytest.fixture
def without_horovod(monkeypatch):
    # None makes an import fail, wherever the tests run.
    for name in ("horovod", "horovod.tensorflow", "horovod.runner"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_horovod")
def test_where_horovod_is_missing_we_say_how_to_get_it():
    with pytest.raises(UserError) as error:
        horovod.start()
    assert str(error.value).startswith("Horovod cannot be imported (")
    assert str(error.value).endswith(MISSING)
    assert SCRIPT.exists()


@pytest.mark.usefixtures("without_horovod")
def test_nothing_is_active_without_horovod():
    assert horovod.active() is False


@pytest.mark.parametrize(
    ("variables", "workers"),
    [({}, 0), ({"HOROVOD_SIZE": "2"}, 2), ({"HOROVOD_SIZE": ""}, 0)],
)
def test_launched_workers(variables, workers, monkeypatch):
    monkeypatch.delenv("HOROVOD_SIZE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert horovod.launched_workers() == workers


WORKER = """
from tfaccel import cli, distribution, horovod, log
log.to_terminal()
cli.start_tensorflow()
import keras
import numpy as np
import tensorflow as tf

strategy = distribution.build()
rank = horovod.rank()
variable = keras.Variable([float(rank), 5.0 + rank])
plain = tf.Variable(rank + 7)
# Types that Horovod does not know.
seed = keras.Variable(np.array([4_000_000_000 + rank], np.uint32), dtype="uint32")
half = tf.Variable(tf.fill([1], tf.cast(rank + 0.5, tf.bfloat16)))
horovod.broadcast([variable, plain, seed, half])
print("broadcast", variable.numpy().tolist(), int(plain), int(seed.numpy()[0]), float(half[0]))


@tf.function
def run(scale):
    own = [scale * (rank + 1), None, tf.fill([2], tf.cast(scale, tf.bfloat16))]
    return horovod.all_reduce_sum(own)


first, none, last = run(tf.constant(3.0))
print("sums", float(first), none, [float(v) for v in last])
print("mean", horovod.average({"loss": rank + 0.5, "accuracy": 1.0}))
print("active", horovod.active(), strategy.num_replicas_in_sync, *distribution.worker(strategy))
"""


@pytest.mark.slow
def test_two_workers(fresh_python, tmp_path):
    assert importlib.util.find_spec("horovod"), f"Horovod is not installed: {MISSING}"
    path = tmp_path / "worker.py"
    path.write_text(textwrap.dedent(WORKER))
    done = fresh_python(
        "-m", "tfaccel.launch", "--horovod", "--workers=2", "--", path, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        prefix = f"[{rank}] "
        lines = [line for line in done.stdout.splitlines() if line.startswith(prefix)]
        assert [line.removeprefix(prefix) for line in lines] == [
            f"distribution: Horovod, worker {rank} of 2, 1 CPU, auto",
            "broadcast [0.0, 5.0] 7 4000000000 0.5",
            "sums 9.0 None [6.0, 6.0]",
            "mean {'accuracy': 1.0, 'loss': 1.0}",
            f"active True 1 {rank} 2",
        ]


TRAINING = """
from tfaccel import cli, distribution
cli.start_tensorflow()
strategy = distribution.build(strategy="horovod")
from tfaccel.selftest import trial
from tfaccel.selftest.cases import Case
for case in (
    Case(workers=2),
    Case(workers=2, accumulation=4, clip=True, ema=True),
    Case(workers=2, jit=True),
    Case(workers=2, precision="mixed_float16", clip=True),
):
    print("same", trial.difference(case, strategy) <= trial.TOLERANCE[case.precision])
"""


@pytest.mark.slow
def test_two_workers_train_as_plain_keras_on_one_device(fresh_python, tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(TRAINING)
    done = fresh_python(
        "-m", "tfaccel.launch", "--horovod", "--workers=2", "--", path, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        lines = [line for line in done.stdout.splitlines() if f"[{rank}] same" in line]
        assert lines == [f"[{rank}] same True"] * 4
