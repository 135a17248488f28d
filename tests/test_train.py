"""The command line, from a config to a report, and what it refuses on the way."""

import csv
import json
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

from tfaccel import cli, evaluate, loop, results, train
from tfaccel import config as config_lib
from tfaccel.data import sources

SMALL = (
    "--config=quickstart",
    "--config.data.name=synthetic",
    "--config.data.image_size=8",
    "--config.data.num_examples=100",
    "--config.data.augment.crop_padding=1",
    "--config.model.arguments.width=4",
    "--config.global_batch_size=16",
    "--config.duration=2ep",
    "--config.log_every=2st",
)


def run(*argv):
    return cli.main(train.run, ["train", *SMALL, *argv])


def report_of(workdir):
    return json.loads((workdir / "report.json").read_text())


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_leaves_its_results(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}") == 0
    assert sorted(path.name for path in workdir.iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.csv",
        "model.keras",
        "predictions.npz",
        "report.html",
        "report.json",
        "starts.json",
        "tensorboard",
        "timing.csv",
    ]
    report = report_of(workdir)
    assert set(report["final"]) == {"accuracy", "loss"}
    assert report["throughput"]["images_per_second"] > 0
    assert report["throughput"]["flops_per_image"] == 582_528
    assert report["throughput"]["mfu"] is None
    assert report["memory"]["host_bytes"] > 100 * 2**20
    found = np.load(workdir / "predictions.npz")
    right = np.trace(found["confusion"])
    assert right / 20 == pytest.approx(report["final"]["accuracy"], abs=1e-6)
    assert found["mistake_images"].shape == (20 - right, 8, 8, 3)
    # 100 images less 20 to test and 8 to validate are 72: 4.5 steps an epoch.
    assert report["examples"] == {"train": 72, "validation": 8, "test": 20}
    assert report["steps"] == 9
    assert report["hardware"]["cpus"] >= 1
    assert {"tensorflow", "keras", "tfaccel", "python"} <= set(report["versions"])
    rows = list(csv.DictReader((workdir / "metrics.csv").open()))
    assert [row["step"] for row in rows] == ["2", "4", "5", "6", "8", "9"]
    assert [row["val_loss"] != "" for row in rows] == [False, False, True, False, False, True]
    timing = list(csv.DictReader((workdir / "timing.csv").open()))
    assert [row["step"] for row in timing] == ["2", "4", "5", "6", "8", "9"]
    for part, seconds in report["time"].items():
        # Rounded to milliseconds.
        rows_sum = sum(float(row[f"{part}_seconds"]) for row in timing)
        assert rows_sum == pytest.approx(seconds, abs=1e-2)
    (start,) = json.loads((workdir / "starts.json").read_text())["starts"]
    given = [*SMALL, f"--workdir={workdir}"]
    assert start["command"] == ["python", "-m", "tfaccel.train", *given]
    assert (start["first_step"], start["total_steps"]) == (0, 9)
    page = (workdir / "report.html").read_text()
    assert "not recorded" not in page  # every "auto" of this run is answered
    assert f"{100 * report['final']['accuracy']:.2f} %" in page
    last = capsys.readouterr().out.splitlines()[-1]
    accuracy = 100 * report["final"]["accuracy"]
    assert last.startswith(f"done: {accuracy:.2f} % accuracy and loss ")
    assert last.endswith(f"results in {workdir}")


def test_evaluate_repeats_the_final_numbers_exactly(tmp_path):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}") == 0
    command = [sys.executable, "-m", "tfaccel.evaluate", f"--workdir={workdir}"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = outcome.stdout.splitlines()
    assert json.loads(lines[-2]) == report_of(workdir)["final"]
    assert lines[-1] == "the same numbers as in report.json"


def test_the_saved_model_loads_and_evaluates_in_plain_keras(tmp_path):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}", "--config.data.normalize=unit") == 0
    model = keras.models.load_model(workdir / "model.keras")
    config = evaluate.load_config(workdir)
    splits = sources.load(**config_lib.arguments(sources.load, config.data))
    images = splits.test.images[splits.test.index] / np.float32(255)
    labels = splits.test.labels[splits.test.index]
    logs = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(report_of(workdir)["final"]["loss"], abs=1e-5)
    assert model.get_config()["name"] == "resnet9"
    assert type(model.optimizer).__module__.startswith("keras.")


@pytest.mark.parametrize(
    "flags",
    [
        ("--config.distribution.logical_cpus=2",),
        ("--config.precision=mixed_bfloat16", "--config.accumulation=2"),
        ("--config.precision=mixed_float16", "--config.distribution.logical_cpus=2"),
        ("--config.jit=true",),
        ("--config.data.mixing.mixup=0.2", "--config.data.mixing.label_smoothing=0.1"),
        (
            "--config.data.mixing.cutmix=1.0",
            "--config.data.augment.alternating_flip",
            "--config.distribution.logical_cpus=2",
            "--config.accumulation=2",
        ),
    ],
)
def test_every_lever_runs_from_the_command_line(flags, tmp_path):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}", *flags) == 0
    assert np.isfinite(report_of(workdir)["final"]["loss"])
    final = evaluate.evaluate(workdir)
    # The same model in the same process and precision.
    assert final == pytest.approx(report_of(workdir)["final"], abs=1e-6)


def test_a_stopped_run_goes_on_and_ends_as_if_never_stopped(tmp_path, monkeypatch, capsys):
    from tfaccel import callbacks

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = ("--config.checkpoint.every=2st",)
    assert run(f"--workdir={whole}", *flags) == 0
    original = callbacks.RunProgress.on_train_batch_end

    def interrupted(self, batch, logs=None):
        original(self, batch, logs)
        if self.step >= 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.RunProgress, "on_train_batch_end", interrupted)
        assert run(f"--workdir={parts}", *flags) == 130
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("interrupted: step 5/9, step_000000004 is saved")
    assert f"--workdir={parts} goes on from there" in message
    assert not (parts / "report.json").exists()
    assert run(f"--workdir={parts}", *flags) == 0
    assert report_of(parts)["final"] == report_of(whole)["final"]
    assert (parts / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()


def test_sigterm_saves_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    from tfaccel import callbacks

    workdir, original = tmp_path / "run", callbacks.RunProgress.on_train_batch_end
    before = signal.getsignal(signal.SIGTERM)

    def terminated(self, batch, logs=None):
        original(self, batch, logs)
        if self.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.RunProgress, "on_train_batch_end", terminated)
        patch.setattr(loop, "_CALL_SECONDS", 0)  # a step a call
        assert run(f"--workdir={workdir}") == 128 + signal.SIGTERM
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("interrupted: step 5/9, step_000000005 is saved; ")
    assert signal.getsignal(signal.SIGTERM) == before
    assert run(f"--workdir={workdir}") == 0
    assert report_of(workdir)["steps"] == 9


def test_a_finished_run_says_so_and_stays_as_it_is(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}") == 0
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
    assert run(f"--workdir={workdir}") == 0
    assert "is finished already: " in capsys.readouterr().out.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*")} == before


def test_early_stopping_from_the_config_reports_the_steps_done(tmp_path):
    workdir = tmp_path / "run"
    flags = ("--config.early_stopping.patience=1", "--config.early_stopping.mode=max")
    flags += ("--config.duration=10ep", "--config.optimizer.learning_rate=0.02")
    assert run(f"--workdir={workdir}", *flags) == 0
    rows = list(csv.DictReader((workdir / "metrics.csv").open()))
    assert report_of(workdir)["steps"] == int(rows[-1]["step"])


def test_without_workdir_a_new_folder_is_made_each_time(tmp_path):
    for _ in range(2):
        assert run() == 0
    assert len(list((tmp_path / "runs").glob("quickstart-*/report.json"))) == 2


REFUSED = {
    "unknown model": (
        ["--config.model.name=resnet5"],
        "received model.name=resnet5",
        "Did you mean resnet50",
    ),
    "unknown optimizer": (
        ["--config.optimizer.name=adm"],
        "received optimizer.name=adm",
        "Did you mean adam",
    ),
    "unknown optimizer argument": (
        ["--config.optimizer.name=adam"],
        "received optimizer.arguments.momentum, which adam does not take",
        "",
    ),
    "batch larger than the data": (
        ["--config.global_batch_size=128"],
        "received global_batch_size=128 for 72 training examples",
        "expected at most that many",
    ),
    "image smaller than the model allows": (
        ["--config.model.name=MobileNetV2"],
        "model.name=MobileNetV2 cannot be built for images of 8x8x3",
        "at least 32x32",
    ),
    "metric that will not exist": (
        ["--config.early_stopping.patience=1", "--config.early_stopping.monitor=val_acc"],
        "EarlyStopping monitors 'val_acc', which this run will not have",
        "loss, accuracy, val_loss, val_accuracy",
    ),
    "no validation to monitor": (
        ["--config.early_stopping.patience=1", "--config.data.validation_share=0"],
        "received early_stopping.monitor=val_loss with data.validation_share=0.0",
        "Keep a share of it, or watch 'loss'",
    ),
    "warm-up longer than the run": (
        ["--config.schedule.warmup=500st"],
        "received schedule.warmup=500st = 500 steps",
        "less than the run's 9 steps",
    ),
    "a model that scales images itself": (
        ["--config.model.name=EfficientNetB0", "--config.data.image_size=32"],
        "scales images itself",
        "data.normalize=none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_the_first_step_in_one_line(case, tmp_path, capsys):
    flags, received, fix = REFUSED[case]
    own_width = [flag for flag in SMALL if "arguments.width" in flag and "Net" in str(flags)]
    argv = [flag for flag in SMALL if flag not in own_width]
    if own_width:
        argv += ["--config.model.arguments={}"]
    assert cli.main(train.run, ["train", *argv, f"--workdir={tmp_path / 'run'}", *flags]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len([line for line in error if line.startswith("error: ")]) == 1
    assert not [line for line in error if "Traceback" in line]
    assert received in error[-1]
    assert fix in error[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_workdir_of_another_config_is_refused_with_the_fields(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}") == 0
    capsys.readouterr()
    assert run(f"--workdir={workdir}", "--config.seed=3", "--config.duration=4ep") == 2
    error = capsys.readouterr().err
    assert "duration: '2ep' -> '4ep'; seed: 0 -> 3" in error


def test_a_file_as_workdir_is_refused(tmp_path, capsys):
    (tmp_path / "run").write_text("mine")
    assert run(f"--workdir={tmp_path / 'run'}") == 2
    assert "which is a file, expected a folder" in capsys.readouterr().err
    assert (tmp_path / "run").read_text() == "mine"


def test_a_read_only_workdir_is_refused(capsys):
    assert run("--workdir=/proc/tfaccel") == 2
    assert "/proc cannot be written to" in capsys.readouterr().err


def test_a_full_disk_is_refused_before_the_first_step(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results.host, "free_disk_bytes", lambda path: 2**20)
    assert run(f"--workdir={tmp_path / 'run'}") == 2
    assert "with 1 MiB free, but this run writes about" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_while_running_is_one_line_and_loses_nothing(
    tmp_path, capsys, monkeypatch
):
    from tfaccel.checkpoint import Checkpointer

    original = Checkpointer.save

    def fills(self, variables, state, *others, **options):
        if state["step"] > 5:
            raise OSError(28, "No space left on device", str(self.directory))
        return original(self, variables, state, *others, **options)

    monkeypatch.setattr(Checkpointer, "save", fills)
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in error
    assert (workdir / "checkpoints" / "step_000000005").is_dir()


def test_evaluating_no_run_is_refused(tmp_path, capsys):
    assert cli.main(evaluate.run, ["evaluate"]) == 2
    assert "received no --workdir" in capsys.readouterr().err
    assert cli.main(evaluate.run, ["evaluate", f"--workdir={tmp_path}"]) == 2
    assert "holds no config.json" in capsys.readouterr().err


def test_evaluating_an_unfinished_run_is_refused(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}") == 0
    (workdir / "model.keras").unlink()
    assert cli.main(evaluate.run, ["evaluate", f"--workdir={workdir}"]) == 2
    assert "the run is not finished" in capsys.readouterr().err


def test_a_trace_and_gradients_from_the_command_line(tmp_path, capsys):
    flags = ("--profile_steps=2:4", "--config.tensorboard.gradient_norms=4st")
    assert run(f"--workdir={tmp_path / 'run'}", *flags) == 0
    events = tmp_path / "run" / "tensorboard"
    assert list(events.glob("plugins/profile/*/*.xplane.pb"))
    assert {path.name for path in events.iterdir()} == {
        "plugins",
        "test",
        "train",
        "validation",
    }
    train_events = next((events / "train").iterdir()).read_bytes()
    assert b"gradient_norm/" in train_events
    assert "profile: steps 2:4 in " in capsys.readouterr().out


@pytest.mark.parametrize("steps", ["", "20:10", "ten"])
def test_a_malformed_range_of_steps_is_refused_at_once(steps, tmp_path, capsys):
    assert run(f"--workdir={tmp_path / 'run'}", f"--profile_steps={steps}") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: received --profile_steps={steps}, expected the first")
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_no_number_is_one_line(tmp_path, capsys):
    flags = ("--config.optimizer.learning_rate=1e30", "--config.tensorboard.enabled=false")
    assert run(f"--workdir={tmp_path / 'run'}", *flags) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: the loss became ")
    assert not (tmp_path / "run" / "report.json").exists()


def test_a_run_without_numbers_is_finished_if_asked_to(tmp_path):
    flags = ("--config.optimizer.learning_rate=1e30", "--config.guard.nonfinite_loss=warn")
    assert run(f"--workdir={tmp_path / 'run'}", *flags) == 0
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert not np.isfinite(float(rows[-1]["loss"]))
    assert np.load(tmp_path / "run" / "predictions.npz")["labels"].shape == (20,)


MEMORY = """
import sys, keras, psutil
from tfaccel import callbacks, cli, train

class Watch(callbacks.RunProgress):
    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 in (5, 20):
            print("RSS", psutil.Process().memory_info().rss)

callbacks.RunProgress = Watch
sys.exit(cli.main(train.run, sys.argv))
"""


def test_memory_stays_flat_over_the_epochs(tmp_path):
    argv = [*SMALL, "--config.duration=20ep", f"--workdir={tmp_path / 'run'}"]
    command = [sys.executable, "-c", MEMORY, *argv]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = outcome.stdout.splitlines()
    fifth, twentieth = (int(line.split()[1]) for line in lines if line.startswith("RSS"))
    assert twentieth - fifth < 10 * 2**20


@pytest.mark.slow
def test_the_quickstart_reads_digits(tmp_path):
    command = [sys.executable, "-m", "tfaccel.train", f"--workdir={tmp_path / 'run'}"]
    subprocess.run(command, check=True)
    assert report_of(tmp_path / "run")["final"]["accuracy"] >= 0.98
