import json

import keras
import numpy as np
import pytest
import tiny

from tfaccel import plan
from tfaccel.checkpoint import Checkpointer
from tfaccel.errors import UserError

LENGTH = plan.build(32, duration="4ep", global_batch_size=8)


def variables(*values):
    return [keras.Variable(np.float32(value), name=f"v{i}") for i, value in enumerate(values)]


def saved(folder, *values, step=1, keep=2):
    checkpointer = Checkpointer(folder, LENGTH, keep=keep)
    return checkpointer, checkpointer.save(variables(*values), {"step": step})


def test_restores_what_it_saved(tmp_path):
    checkpointer, path = saved(tmp_path, [1, 2], 3)
    target = variables([0, 0], 0)
    checkpointer.restore(path, target)
    assert [v.numpy().tolist() for v in target] == [[1.0, 2.0], 3.0]
    assert checkpointer.read_state(path) == {"step": 1}


@pytest.mark.parametrize(
    ("every", "due_at"),
    [
        ("1ep", [4, 8, 12, 16]),
        ("2ep", [8, 16]),
        ("5st", [5, 10, 15]),
        ("50%", [8, 16]),
        ("0st", []),
    ],
)
def test_is_due_as_often_as_asked(tmp_path, every, due_at):
    checkpointer = Checkpointer(tmp_path, LENGTH, every=every)
    ended = {4: 1, 8: 2, 12: 3, 16: 4}
    assert [s for s in range(1, 17) if checkpointer.due(s, ended.get(s))] == due_at
    assert checkpointer.enabled == bool(due_at)


def test_states_its_next_boundary_between_epochs(tmp_path):
    assert Checkpointer(tmp_path, LENGTH, every="5st").next_boundary(5) == 10
    assert Checkpointer(tmp_path, LENGTH, every="1ep").next_boundary(5) is None


def test_keeps_the_newest(tmp_path):
    for step in (1, 2, 3):
        checkpointer, _ = saved(tmp_path, 0, step=step, keep=2)
    assert [path.name for path in checkpointer.all()] == ["step_000000002", "step_000000003"]
    assert checkpointer.newest().name == "step_000000003"


def test_a_half_written_checkpoint_is_never_seen(tmp_path):
    checkpointer, path = saved(tmp_path, 0)
    (tmp_path / "step_000000009").mkdir()
    (tmp_path / ".partial_step_000000008").mkdir()
    assert checkpointer.all() == [path]


def test_a_failed_save_leaves_nothing_and_is_a_disk_error(tmp_path, monkeypatch):
    import tensorflow as tf

    def full(self, path):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.train.Checkpoint, "write", full)
    checkpointer = Checkpointer(tmp_path, LENGTH)
    with pytest.raises(OSError, match="No space left on device"):
        checkpointer.save(variables(0), {"step": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (([0, 0, 0], 0), "holds v0 (2 float32) as variable 0, expected v0 (3 float32)"),
        (([0, 0],), "holds 2 variables, expected 1"),
        (([0, 0], 0, 0), "holds 2 variables, expected 3"),
    ],
)
def test_refuses_the_checkpoint_of_another_model(tmp_path, target, message):
    checkpointer, path = saved(tmp_path, [1, 2], 3)
    with pytest.raises(UserError) as error:
        checkpointer.restore(path, variables(*target))
    assert message in str(error.value)


def test_a_damaged_file_is_named(tmp_path):
    checkpointer, path = saved(tmp_path, np.arange(1000))
    data = next(path.glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(UserError, match=f"{path} is damaged"):
        checkpointer.restore(path, variables(np.zeros(1000)))


def test_a_damaged_manifest_is_named(tmp_path):
    checkpointer, path = saved(tmp_path, 0)
    (path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="no readable checkpoint"):
        checkpointer.read_state(path)


def test_the_manifest_lists_order_path_shape_and_dtype(tmp_path):
    _, path = saved(tmp_path, [1, 2], 3)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["variables"] == [
        {"path": "v0", "shape": [2], "dtype": "float32"},
        {"path": "v1", "shape": [], "dtype": "float32"},
    ]


def test_dropout_states_metrics_and_slots_are_all_in_it(tmp_path):
    from tfaccel import loop

    length = plan.build(48, duration="1ep", global_batch_size=8)
    model = tiny.model(dropout=0.5, norm=keras.layers.BatchNormalization())
    checkpointer = Checkpointer(tmp_path, length)
    loop.fit(model, tiny.training(), length, checkpointer=checkpointer)
    manifest = json.loads((checkpointer.newest() / "manifest.json").read_text())
    paths = " ".join(variable["path"] for variable in manifest["variables"])
    for part in ("seed_generator_state", "moving_mean", "momentum", "iteration", "loss/total"):
        assert part in paths, part
