"""Pruning from the command line: the report, the saved model, what is refused."""

import json

import keras
import pytest
from test_train import run

from tfaccel import cli, evaluate, pruning, train

PRUNED = ("--config.pruning.final_sparsity=0.8", "--config.pruning.end=6st")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def report_of(workdir):
    return json.loads((workdir / "report.json").read_text())


def test_a_pruned_run_reports_and_saves_its_sparsity(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}", *PRUNED) == 0
    found = report_of(workdir)["sparsity"]
    for tensor in found["tensors"]:
        assert tensor["weights"] - tensor["zeros"] == pytest.approx(
            tensor["weights"] * 0.2, abs=1
        )
    assert found["overall"] == pytest.approx(0.8, abs=0.005)
    model = keras.models.load_model(workdir / "model.keras")
    assert pruning.sparsity(model) == found
    assert evaluate.evaluate(workdir) == pytest.approx(report_of(workdir)["final"], abs=1e-6)
    printed = capsys.readouterr().out
    assert f"sparsity: {100 * found['overall']:.2f} % of {found['weights']:,}" in printed


REFUSED = {
    "a pattern that matches nothing": (
        [*PRUNED, "--config.pruning.layers={'hed': 0.0}"],
        "received pruning.layers.hed, which matches no layer with a kernel.",
    ),
    "a schedule longer than the run": (
        [PRUNED[0], "--config.pruning.end=20st", "--config.pruning.begin=0st"],
        "received pruning.end=20st = step 20, but the run has 9 steps: at step 9 sparsity "
        "would be 0.67, asked 0.80. Use 9st or less.",
    ),
    "a beginning after the end": (
        [*PRUNED, "--config.pruning.begin=90%"],
        "received pruning.begin=90% = step 8 and pruning.end=6st = step 6",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(name, tmp_path, capsys):
    flags, message = REFUSED[name]
    workdir = tmp_path / "run"
    assert run(f"--workdir={workdir}", *flags) == 2
    assert message in capsys.readouterr().err
    assert not workdir.exists()


@pytest.mark.slow
def test_quickstart_at_80_percent_is_small_and_as_good(tmp_path):
    sizes, accuracy = {}, {}
    for sparsity in (0.0, 0.8):
        workdir = tmp_path / str(sparsity)
        flags = [f"--config.pruning.final_sparsity={sparsity}", f"--workdir={workdir}"]
        assert cli.main(train.run, ["train", "--config=quickstart", *flags]) == 0
        sizes[sparsity] = pruning.file_sizes(workdir / "model.keras")["gzip_bytes"]
        accuracy[sparsity] = report_of(workdir)["final"]["accuracy"]
    assert sizes[0.8] < 0.45 * sizes[0.0]
    assert accuracy[0.8] > accuracy[0.0] - 0.01
