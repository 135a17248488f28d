"""The command line of export, from a run to files, and what it refuses on the way."""

import json

import numpy as np
import pytest

from tfaccel import cli, train
from tfaccel.export import __main__ as command

TINY = (
    "--config=quickstart",
    "--config.data.augment.crop_padding=1",
    "--config.model.arguments.width=4",
    "--config.global_batch_size=16",
    "--config.duration=10st",
    "--config.precision=mixed_bfloat16",
)


def run(*argv):
    return cli.main(command.run, ["export", *argv])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of two classes, dark and bright, as an .npz file."""
    random = np.random.default_rng(0)
    labels = np.arange(120) % 2
    images = random.integers(0, 128, (120, 8, 8, 3)) + 120 * labels[:, None, None, None]
    images = images.astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "two.npz"
    np.savez(
        path, x_train=images[:80], y_train=labels[:80], x_test=images[80:], y_test=labels[80:]
    )
    return path


@pytest.fixture(scope="module")
def workdir(data, tmp_path_factory):
    """A finished run in bfloat16."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    flags = (f"--workdir={folder}", "--config.data.name=npz", f"--config.data.dir={data}")
    assert cli.main(train.run, ["train", *TINY, *flags]) == 0
    return folder


def test_a_run_becomes_verified_files_and_a_table(workdir, capsys):
    flags = ("--formats=litert,litert_int8,onnx", "--include_preprocessing", "--threads=1")
    assert run(f"--workdir={workdir}", *flags, "--test_images=20") == 0
    assert sorted(path.name for path in (workdir / "export").iterdir()) == [
        "accuracy_size.svg",
        "export.json",
        "export_metadata.json",
        "model.onnx",
        "model.tflite",
        "model_int8.tflite",
    ]
    report = json.loads((workdir / "export" / "export.json").read_text())
    assert (report["images"], report["labelled"]) == (20, True)
    assert report["input"]["dtype"] == "uint8"
    assert report["batch_norm"] == {"folded": 8, "kept": 0}
    assert report["hardware"]["cpus"] >= 1
    assert {"keras", "tensorflow", "onnxruntime"} <= set(report["versions"])
    out = capsys.readouterr().out
    lines = out.splitlines()
    header = next(line for line in lines if line.startswith("format "))
    assert header.split("  ")[-1].strip() == "ms b32 t1"
    names = [line.split()[0] for line in lines[lines.index(header) + 1 :][:3]]
    assert names == ["litert", "litert_int8", "onnx"]
    accuracy = 100 * report["accuracy"]
    assert f"on 20 images; the float32 model itself has {accuracy:.2f} % (labels" in out
    assert "litert_int8 against litert: " in out
    assert lines[-1] == f"done: {workdir / 'export'}"


def test_another_run_comes_beside_in_table_and_picture(workdir, capsys):
    flags = ("--formats=onnx", "--threads=", f"--workdir={workdir}")
    assert run(*flags) == 0
    assert run(*flags, f"--beside={workdir}") == 0
    same = "onnx: 1.00 of the bytes, 1.00 after gzip, +0.00 points of accuracy"
    assert same in capsys.readouterr().out.splitlines()
    assert ">run/onnx, " in (workdir / "export" / "accuracy_size.svg").read_text()
    assert run(*flags, "--test_images=10", f"--beside={workdir}") == 0
    assert "was verified on other images: not compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--formats=keras,onxx",),
            "received the format 'onxx', which does not exist. Did you",
        ),
        (("--formats=",), "received no formats, expected some of keras, savedmodel"),
        (("--threads=0",), "received --threads=0, expected whole numbers such as 1,2"),
        (("--test_images=0",), "received test_images=0"),
        (("--beside=elsewhere",), "received --beside=elsewhere, which holds no export/"),
        (("--fromats=onnx",), "received the unknown flag --fromats. Did you mean --formats?"),
    ],
)
def test_bad_flags_are_one_line(workdir, flags, message, capsys):
    before = sorted(workdir.iterdir())
    assert run(f"--workdir={workdir}", *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert sorted(workdir.iterdir()) == before


def test_no_workdir_is_one_line(capsys):
    assert run() == 2
    assert capsys.readouterr().err == (
        "error: received no --workdir, expected the folder of a finished run.\n"
    )


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert run(f"--workdir={tmp_path}") == 2
    assert "which holds no config.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run_is_refused(workdir, tmp_path, capsys):
    (tmp_path / "config.json").write_text((workdir / "config.json").read_text())
    assert run(f"--workdir={tmp_path}") == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} holds no model.keras: the run is not finished. Go on with python "
        f"-m tfaccel.train, the same config and --workdir={tmp_path}.\n"
    )


def test_data_that_are_gone_are_refused(workdir, tmp_path, capsys):
    (tmp_path / "model.keras").write_bytes((workdir / "model.keras").read_bytes())
    config = json.loads((workdir / "config.json").read_text())
    config["data.dir"] = str(tmp_path / "gone.npz")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(f"--workdir={tmp_path}") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: received data.name=npz with data.dir=")
    assert "gone.npz" in error
    assert not (tmp_path / "export").exists()


def test_a_damaged_model_is_refused(workdir, tmp_path, capsys):
    (tmp_path / "config.json").write_text((workdir / "config.json").read_text())
    (tmp_path / "model.keras").write_bytes(b"")
    assert run(f"--workdir={tmp_path}") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {tmp_path}/model.keras cannot be loaded: ")
    assert not (tmp_path / "export").exists()
