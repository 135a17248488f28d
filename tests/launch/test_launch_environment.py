import json

import pytest

from tfaccel import host
from tfaccel.errors import UserError
from tfaccel.launch import environment

NEEDS_TENSORFLOW = False


@pytest.mark.parametrize(
    ("gpus", "workers", "each", "shares"),
    [
        ("0123", 2, None, ["01", "23"]),
        ("0123", 4, None, ["0", "1", "2", "3"]),
        ("012", 2, None, ["0", "1"]),
        ("0123", 2, 1, ["0", "1"]),
        # To train on CPUs although there are GPUs: each worker sees none.
        ("0123", 2, 0, ["", ""]),
        ("", 2, 0, ["", ""]),
    ],
)
def test_gpus_are_shared_out(gpus, workers, each, shares):
    expected = [list(share) for share in shares]
    assert environment.share_gpus(list(gpus), workers, each) == expected


def test_without_gpus_nothing_is_set():
    assert environment.share_gpus([], 2, None) == []


@pytest.mark.parametrize(
    ("gpus", "workers", "each"), [("0", 2, None), ("01", 2, 2), ("", 1, 1)]
)
def test_fewer_gpus_than_asked(gpus, workers, each):
    with pytest.raises(UserError, match=f"but this host has {len(gpus)}: start fewer workers"):
        environment.share_gpus(list(gpus), workers, each)


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("0,1", ["0", "1"]),
        ("GPU-a, GPU-b", ["GPU-a", "GPU-b"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_gpus_are_those_that_cuda_would_see(value, gpus):
    assert environment.visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == gpus


def test_gpus_are_asked_of_the_driver(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU-1a-2b\necho GPU-3c-4d\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment.visible_gpus({}) == ["GPU-1a-2b", "GPU-3c-4d"]


def test_a_driver_that_fails_has_no_gpus(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment.visible_gpus({}) == []


def test_workers(monkeypatch):
    monkeypatch.setattr(host, "cpu_count", lambda: 5)
    told = environment.tf_configs(["a:1", "a:2", "b:1", "b:2"], 2, 2)
    first, second = environment.workers(2, told, [["7"], []])
    assert (first.index, second.index) == (2, 3)
    assert json.loads(first.variables["TF_CONFIG"])["task"]["index"] == 2
    assert first.variables["CUDA_VISIBLE_DEVICES"] == "7"
    assert second.variables["CUDA_VISIBLE_DEVICES"] == "-1"
    # 5 CPUs for 2 workers.
    assert first.variables["TFACCEL_CPUS"] == first.variables["OMP_NUM_THREADS"] == "2"


def test_more_workers_than_cpus_have_one_each(monkeypatch):
    monkeypatch.setattr(host, "cpu_count", lambda: 1)
    only, _ = environment.workers(0, [{}, {}], [])
    assert only.variables["TFACCEL_CPUS"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in only.variables


def test_addresses():
    assert environment.addresses(["a", "b"], 2, 5) == ["a:5", "a:6", "b:5", "b:6"]
    assert environment.addresses([], 2, 5) == ["127.0.0.1:5", "127.0.0.1:6"]
    first, second = environment.addresses([], 2, 0)
    assert first != second
    assert 12_000 <= int(first.rpartition(":")[2]) < 32_000
