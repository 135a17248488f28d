"""Reading a run's folder, in whatever state it is."""

import json
import math

import numpy as np
import pytest
import run_folders

from tfaccel.errors import UserError
from tfaccel.report import runs

NEEDS_TENSORFLOW = False


def test_a_finished_run(tmp_path):
    run = runs.read(run_folders.write(tmp_path / "run", epochs=2, steps_per_epoch=10))
    assert run.finished
    assert (run.steps, run.total_steps, run.steps_per_epoch, run.epochs) == (20, 20, 10.0, 2.0)
    assert [row["step"] for row in run.metrics] == [5, 10, 15, 20]
    assert run.images_per_second == 1234.5
    # 4 rows of 0.8 s +- 10 % a step, and one compilation.
    assert run.time_split["compile"] == 9.0
    assert 2.8 < run.time_split["step"] < 3.6
    assert run.seconds == pytest.approx(sum(run.time_split.values()) + 12.0)
    assert run.hardware == run_folders.HARDWARE
    assert run.versions == run_folders.VERSIONS
    assert run.notes == []


def test_a_killed_run_is_read_from_its_rows(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=2, steps_per_epoch=10, finished=False)
    run = runs.read(folder)
    assert not run.finished
    assert run.steps == 20
    assert run.time_split["compile"] == 9.0
    assert 1000 < run.images_per_second < 1400
    assert run.seconds == pytest.approx(sum(run.time_split.values()))
    assert run.hardware == run_folders.HARDWARE
    assert run.predictions == {}
    assert run.notes == [
        "The run is not finished: 20 of 20 steps are recorded. It may still be going, or was "
        "stopped."
    ]


def test_a_run_killed_before_its_first_row(tmp_path):
    run_folders.write_json(tmp_path / "config.json", {"seed": 3})
    run = runs.read(tmp_path)
    assert (run.steps, run.metrics, run.timing, run.time_split) == (0, [], [], {})
    assert run.seconds is None
    assert run.images_per_second is None
    assert run.notes[-1] == "metrics.csv has no row yet, so there are no curves."


def test_metrics_of_a_stock_fit_are_enough(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,epoch,learning_rate,loss\r\n4,0,0.05,1.5\r\n")
    run = runs.read(tmp_path)
    assert run.config == {}
    assert run.metrics == [{"step": 4, "epoch": 0, "learning_rate": 0.05, "loss": 1.5}]


@pytest.mark.parametrize(
    "half",
    ["8", "8,1", "8,1,0.05,0.", "8,1,0.05,0.25", "8,1,0.05,0.25,,,\r\n", "8,x,0.05,1\r\n"],
)
def test_half_a_row_is_left_out_with_a_note(tmp_path, half):
    whole = "step,epoch,learning_rate,loss\r\n4,0,0.05,1.5\r\n"
    (tmp_path / "metrics.csv").write_bytes((whole + half).encode())
    run = runs.read(tmp_path)
    assert [row["step"] for row in run.metrics] == [4]
    assert "metrics.csv: 1 line half written or damaged, left out." in run.notes


@pytest.mark.parametrize("content", [b"", b"step,epo", b"step,epoch\r\n", b"\0\0\0\r\n\xff"])
def test_a_metrics_file_without_rows(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    assert runs.read(tmp_path).metrics == []


def test_losses_that_are_not_finite_are_noted(tmp_path):
    rows = ["1,0,0.1,2.0", "2,0,0.1,nan", "3,0,0.1,inf"]
    text = "\r\n".join(["step,epoch,learning_rate,loss", *rows, ""])
    (tmp_path / "metrics.csv").write_bytes(text.encode())
    run = runs.read(tmp_path)
    assert "loss was not finite in 2 rows, first at step 2." in run.notes
    assert math.isnan(run.metrics[1]["loss"])
    assert run.best("loss")["step"] == 1


def test_best_is_lowest_for_losses_and_highest_for_accuracies(tmp_path):
    text = "step,loss,val_accuracy\r\n1,0.5,\r\n2,0.2,0.9\r\n3,0.3,0.7\r\n"
    (tmp_path / "metrics.csv").write_bytes(text.encode())
    run = runs.read(tmp_path)
    assert run.best("loss")["step"] == 2
    assert run.best("val_accuracy")["step"] == 2
    assert run.best("val_loss") is None
    steps, values = run.series("val_accuracy")
    assert (list(steps), list(values)) == ([2.0, 3.0], [0.9, 0.7])


def test_damaged_predictions_are_left_out_with_a_note(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    whole = (folder / "predictions.npz").read_bytes()
    (folder / "predictions.npz").write_bytes(whole[: len(whole) // 2])
    run = runs.read(folder)
    assert run.predictions == {}
    assert run.notes[0].startswith("predictions.npz cannot be read (")


def test_pickled_predictions_are_not_executed(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    np.savez(folder / "predictions.npz", labels=np.array([{"a": 1}], dtype=object))
    assert runs.read(folder).predictions == {}


def test_a_run_that_went_on_has_several_starts(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    starts = json.loads((folder / "starts.json").read_text())["starts"]
    run_folders.write_json(
        folder / "starts.json", {"starts": [*starts, {**starts[0], "first_step": 9}]}
    )
    run = runs.read(folder)
    assert run.last_start["first_step"] == 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "absent, which does not exist, expected a run's folder."),
        ("file", "file, which is a file, expected a run's folder."),
        (
            "empty",
            "empty, which holds neither config.json nor metrics.csv, expected a",
        ),
    ],
)
def test_no_run_is_refused(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as error:
        runs.read(tmp_path / name)
    assert message in str(error.value)


def test_a_damaged_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read: "):
        runs.read(tmp_path)


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["a/one", "a/two"], ["one", "two"]),
        (["a/run", "b/run"], ["a/run", "b/run"]),
        (["a/x/run", "a/y/run", "a/z"], ["x/run", "y/run", "a/z"]),
    ],
)
def test_names_are_short_and_different(tmp_path, folders, names):
    found = []
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
        found.append(runs.read(tmp_path / folder))
    assert runs.names(found) == names
