"""The config of a run, what "auto" came to, and the command that repeats it."""

import shlex

import pytest
import run_folders
from absl import flags

from tfaccel import config as config_lib
from tfaccel import config_flag
from tfaccel.report import answers, runs

NEEDS_TENSORFLOW = False

DECIDED = ["precision: float32 (auto: no GPU)", "distribution: one device (1 CPU, auto)"]


@pytest.mark.parametrize(
    ("field", "answer"),
    [
        ("precision", "float32 (auto: no GPU)"),
        ("distribution.strategy", "one device (1 CPU, auto)"),
        ("jit", "not recorded"),
        ("early_stopping.mode", "not used: early_stopping.patience is 0"),
    ],
)
def test_the_log_lines_answer_auto(field, answer):
    config = {"early_stopping.patience": 0}
    assert answers.answer(field, config, DECIDED) == answer


def test_a_fields_own_line_comes_before_its_sections():
    decided = ["schedule: cosine", "schedule.warmup: 30 steps (auto: 30% of the run)"]
    assert answers.answer("schedule.warmup", {}, decided) == "30 steps (auto: 30% of the run)"


def test_fields_say_what_is_not_the_default(tmp_path):
    config = {"seed": 3, "model.arguments": {"width": 16}, "gone": [1]}
    run = runs.read(run_folders.write(tmp_path, epochs=1, config=config))
    found = {field["name"]: field for field in answers.fields(run)}
    changed = {name for name, field in found.items() if field["changed"]}
    assert changed == {"seed", "model.arguments", "gone", "duration"}
    assert found["seed"]["value"] == "3"
    assert found["model.arguments"]["value"] == '{"width": 16}'
    assert found["precision"]["answer"] == "float32 (auto: no GPU)"
    assert found["devices.intra_op_threads"]["answer"] == "2, one a CPU of this process"
    assert found["seed"]["answer"] == ""


def test_the_command_is_the_one_given_without_its_folder(tmp_path):
    run = runs.read(run_folders.write(tmp_path, epochs=1))
    given = ["python", "-m", "tfaccel.train", "--config=quickstart", "--config.seed=3"]
    for workdir in (["--workdir=runs/a b"], ["--workdir", "runs/a b"], ["-workdir=x"]):
        run.starts[-1]["command"] = [*given[:4], *workdir, *given[4:]]
        assert answers.command(run) == shlex.join(given)
    assert answers.go_on(run) == f"{shlex.join(given)} --workdir={tmp_path}"


def test_a_run_from_python_is_repeated_by_its_fields(tmp_path):
    config = {
        "seed": 3,
        "model.arguments": {"width": 8},
        "data.validation_share": 0.25,
        "data.augment.flip": True,
        "optimizer.arguments": {},
        "early_stopping.monitor": "val accuracy",
    }
    run = runs.read(run_folders.write(tmp_path, epochs=1, config=config))
    run.starts[-1]["command"] = []
    argv = shlex.split(answers.command(run))
    assert argv[:3] == ["python", "-m", "tfaccel.train"]
    flag_values = flags.FlagValues()
    flag_values(config_flag.define(flag_values, argv[2:]))
    assert config_lib.flat(flag_values.config) == run.config


def test_only_fields_that_differ_are_compared(tmp_path):
    changed = {"seed": 1, "new": "x"}
    found = [
        runs.read(run_folders.write(tmp_path / "one", epochs=1)),
        runs.read(run_folders.write(tmp_path / "two", epochs=1, config=changed)),
    ]
    assert answers.differing(found) == [
        {"name": "new", "values": ["null", "x"]},
        {"name": "seed", "values": ["0", "1"]},
    ]
