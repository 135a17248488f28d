import errno
import json
import os
import time
from importlib import metadata
from pathlib import Path

import pytest

import tfaccel
from tfaccel import config as config_lib
from tfaccel import host, results
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False

CONFIG = config_lib.flat(config_lib.default())


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def run_of(folder, **changed):
    """A folder that holds a run of the default config, with some fields changed."""
    results.write_json(folder / "config.json", {**CONFIG, **changed})
    return folder


def test_a_folder_that_is_not_there_yet_is_fine(tmp_path):
    results.check_workdir(tmp_path / "runs" / "first", CONFIG)
    assert everything_in(tmp_path) == []


def test_an_empty_folder_is_fine(tmp_path):
    (tmp_path / "run").mkdir()
    results.check_workdir(tmp_path / "run", CONFIG)
    assert everything_in(tmp_path) == ["run"]


def test_a_relative_folder_is_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results.check_workdir(Path("runs/first"), CONFIG)
    assert everything_in(tmp_path) == []


def test_a_run_of_the_same_config_goes_on(tmp_path):
    results.check_workdir(run_of(tmp_path), CONFIG)
    assert everything_in(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    "changed",
    [
        {"devices.memory_growth": True},
        {"devices.intra_op_threads": 2},
        {"devices.visible": "0"},
        {"checkpoint.every": "5ep"},
        {"checkpoint.keep": 9},
        {"log_every": "1st"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_run_may_go_on_elsewhere_and_be_watched_otherwise(tmp_path, changed):
    results.check_workdir(run_of(tmp_path, **changed), CONFIG)


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"seed": 3}, "seed: 3 -> 0"),
        ({"data.dir": "there"}, "data.dir: 'there' -> None"),
        ({"jit": True, "duration": "3ep"}, "duration: '3ep' -> '10ep'; jit: True -> 'auto'"),
        # What may differ is not named.
        ({"log_every": "1st", "seed": 3}, "seed: 3 -> 0"),
    ],
)
def test_a_run_of_another_config_is_refused(tmp_path, changed, fields):
    run_of(tmp_path, **changed)
    with pytest.raises(UserError) as error:
        results.check_workdir(tmp_path, CONFIG)
    assert str(error.value) == (
        f"{tmp_path} holds a run of another config ({fields}): use another --workdir, or the "
        "values it was started with."
    )
    assert everything_in(tmp_path) == ["config.json"]


def test_a_file_in_the_way_is_refused(tmp_path):
    workdir = tmp_path / "run"
    workdir.write_text("mine")
    with pytest.raises(UserError) as error:
        results.check_workdir(workdir, CONFIG)
    assert str(error.value) == (
        f"received --workdir={workdir}, which is a file, expected a folder."
    )
    assert workdir.read_text() == "mine"


def test_a_file_further_up_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError) as error:
        results.check_workdir(tmp_path / "file" / "run", CONFIG)
    assert str(tmp_path / "file") in str(error.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    # Permission bits do not bind root, who may run the tests.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError) as error:
        results.check_workdir(tmp_path / "runs" / "first", CONFIG)
    assert str(error.value) == (
        f"received --workdir={tmp_path}/runs/first, but {tmp_path} cannot be written to: "
        "choose another folder, or mend its permissions."
    )
    assert everything_in(tmp_path) == []


def test_a_file_system_that_takes_no_files_is_refused():
    # For root a read-only one: permission is given, writing fails.
    with pytest.raises(UserError) as error:
        results.check_workdir(Path("/proc/runs/first"), CONFIG)
    assert str(error.value).startswith(
        "received --workdir=/proc/runs/first, but /proc cannot be written to: "
    )


@pytest.mark.parametrize("text", ["", "{", '{"seed": ', "\0", "[1]", "3", "null"])
def test_a_damaged_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as error:
        results.check_workdir(tmp_path, CONFIG)
    assert str(error.value).startswith(f"{tmp_path / 'config.json'} cannot be read: ")


def test_check_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "free_disk_bytes", lambda path: 3 * 2**20)
    results.check_disk(tmp_path, 3 * 2**20)
    with pytest.raises(UserError) as error:
        results.check_disk(tmp_path, 5 * 2**20)
    assert str(error.value) == (
        f"{tmp_path} is on a disk with 3 MiB free, but this run writes about 5 MiB: free some "
        "space, lower checkpoint.keep, or choose another --workdir."
    )


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.ENOSPC, "No space left on device", "elsewhere"),
        OSError(errno.EACCES, "Permission denied", "run/metrics.csv"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
    ids=str,
)
def test_a_disk_that_fails_in_a_run_is_told_in_one_line(error):
    with pytest.raises(UserError) as told, results.disk_errors(Path("run")):
        raise error
    assert str(told.value).startswith(f"run cannot be written any more ({error}): ")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "data/x"),
        # A neighbour with a similar name.
        PermissionError(errno.EACCES, "Permission denied", "run2/x"),
        ConnectionError("refused"),
        ZeroDivisionError(),
    ],
    ids=repr,
)
def test_other_errors_in_a_run_are_bugs(error):
    with pytest.raises(type(error)) as told, results.disk_errors(Path("run")):
        raise error
    assert told.value is error


def test_json_goes_round(tmp_path):
    path = tmp_path / "new" / "folders" / "config.json"
    results.write_json(path, CONFIG)
    assert results.read_json(path) == CONFIG
    # Made to be read by people too.
    assert path.read_text() == json.dumps(CONFIG, indent=2) + "\n"
    assert everything_in(path.parent) == ["config.json"]


@pytest.mark.parametrize("name", ["absent.json", "absent/x.json", "file.txt/x.json"])
def test_no_json_is_none(tmp_path, name):
    (tmp_path / "file.txt").touch()
    assert results.read_json(tmp_path / name) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[1]", b"3", b"null"], ids=lambda content: str(content)
)
def test_damaged_json_is_refused(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        results.read_json(path)
    assert str(error.value).startswith(f"{path} cannot be read: ")


def test_a_folder_instead_of_json_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read: "):
        results.read_json(tmp_path)


def test_write_json_leaves_the_old_file_whole_if_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    results.write_json(path, {"seed": 1})

    def write_half(path, text):
        with path.open("w") as file:
            file.write(text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match="No space left"):
        results.write_json(path, {"seed": 2})
    assert results.read_json(path) == {"seed": 1}


def test_write_json_leaves_the_old_file_whole_if_the_content_is_none(tmp_path):
    path = tmp_path / "config.json"
    results.write_json(path, {"seed": 1})
    with pytest.raises(TypeError):
        results.write_json(path, {"seed": object()})
    assert results.read_json(path) == {"seed": 1}
    assert everything_in(tmp_path) == ["config.json"]


def test_versions():
    versions = results.versions()
    assert versions["tfaccel"] == tfaccel.__version__
    assert versions["keras"] == metadata.version("keras")
    assert sorted(versions) == [
        "keras",
        "numpy",
        "python",
        "tensorflow",
        "tensorflow-datasets",
        "tfaccel",
    ]


def test_each_start_is_noted(tmp_path):
    results.note_start(tmp_path, CONFIG, {"command": ["a"], "first_step": 0})
    results.note_start(tmp_path, CONFIG, {"command": ["b"], "first_step": 7})
    assert results.read_json(tmp_path / "config.json") == CONFIG
    first, second = results.read_json(tmp_path / "starts.json")["starts"]
    assert (first["command"], first["first_step"]) == (["a"], 0)
    assert (second["command"], second["first_step"]) == (["b"], 7)
    # Year to second, and the zone, so that it can be read elsewhere.
    assert time.strptime(first["time"], "%Y-%m-%dT%H:%M:%S%z")
