import os
import platform
import shutil
import socket
import urllib.request
from collections import namedtuple

import pytest

from tfaccel import host

NEEDS_TENSORFLOW = False
GIB = 2**30


@pytest.fixture
def machine(monkeypatch):
    """A machine of 64 CPUs and 8 GiB, whatever the tests run on."""
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GIB // 4096}
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


def v1(quota, period=100000):
    return {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": period}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"cpu.max": "150000 100000"}, 2, id="v2: 1.5 CPUs are rounded up"),
        pytest.param({"cpu.max": "200000 100000"}, 2, id="v2: 2 CPUs"),
        pytest.param({"cpu.max": "1000 100000"}, 1, id="v2: never none"),
        pytest.param({"cpu.max": "9900000 100000"}, 64, id="v2: more than there are"),
        pytest.param({"cpu.max": "max 100000"}, 64, id="v2: no quota"),
        pytest.param(v1(150000), 2, id="v1: 1.5 CPUs are rounded up"),
        pytest.param(v1(25000, 50000), 1, id="v1: half a CPU"),
        pytest.param(v1(-1), 64, id="v1: no quota"),
        pytest.param(v1(150000, 0), 64, id="v1: period of nothing"),
        pytest.param({}, 64, id="no control groups"),
        pytest.param({"cpu.max": "nonsense"}, 64, id="damaged"),
    ],
)
def test_cpu_count_heeds_the_quota(tmp_path, files, expected):
    assert host.cpu_count(write(tmp_path, files)) == expected


@pytest.mark.usefixtures("machine")
def test_cpu_count_heeds_the_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert host.cpu_count(tmp_path) == 3
    assert host.cpu_count(write(tmp_path, {"cpu.max": "150000 100000"})) == 2


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("share", "expected"), [("4", 4), ("99", 64), ("0", 1), ("", 64), ("many", 64)]
)
def test_cpu_count_heeds_a_workers_share(tmp_path, monkeypatch, share, expected):
    # As tfaccel.launch sets it.
    monkeypatch.setenv("TFACCEL_CPUS", share)
    assert host.cpu_count(tmp_path) == expected


@pytest.mark.usefixtures("machine")
def test_cpu_count_without_affinity(tmp_path, monkeypatch):
    # macOS and Windows have none.
    monkeypatch.delattr(os, "sched_getaffinity")
    assert host.cpu_count(tmp_path) == 64


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"memory.max": GIB}, GIB, id="v2"),
        pytest.param({"memory.max": "max"}, 8 * GIB, id="v2: no limit"),
        pytest.param({"memory.max": 9 * GIB}, 8 * GIB, id="v2: more than there is"),
        pytest.param({"memory/memory.limit_in_bytes": GIB}, GIB, id="v1"),
        # What v1 writes for "no limit": the largest multiple of a page.
        pytest.param(
            {"memory/memory.limit_in_bytes": 9223372036854771712}, 8 * GIB, id="v1: no limit"
        ),
        pytest.param({}, 8 * GIB, id="no control groups"),
    ],
)
def test_memory_heeds_the_limit(tmp_path, files, expected):
    assert host.memory_bytes(write(tmp_path, files)) == expected


def test_free_disk_is_asked_of_the_nearest_folder_that_exists(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or usage(123))
    assert host.free_disk_bytes(tmp_path / "not" / "yet") == 123
    assert host.free_disk_bytes(tmp_path) == 123
    assert asked == [tmp_path, tmp_path]


@pytest.mark.usefixtures("machine")
def test_describe_is_what_a_report_needs():
    described = host.describe()
    assert set(described) == {"processor", "cpus", "memory_gib", "system"}
    assert described["processor"]
    assert 1 <= described["cpus"] <= 64
    assert 0 < described["memory_gib"] <= 8


@pytest.fixture
def offline(monkeypatch):
    def lookup(*args):
        raise socket.gaierror("no name")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(urllib.request, "getproxies", dict)


@pytest.mark.usefixtures("offline")
def test_missing_network_is_an_os_error():
    with pytest.raises(OSError, match="no name"):
        host.check_network()


@pytest.mark.usefixtures("offline")
def test_names_need_not_resolve_behind_a_proxy(monkeypatch):
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "http://proxy:8080"})
    host.check_network()


@pytest.mark.usefixtures("offline")
def test_name_that_resolves_is_network_enough(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: [])
    host.check_network()


def test_the_memory_of_this_process_is_what_psutil_says():
    import psutil

    # The one look is a moment before the other.
    assert host.process_memory_bytes() == pytest.approx(
        psutil.Process().memory_info().rss, rel=0.05
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept_though_thresholds_were_set(fresh_python, tmp_path):
    program = """
import ctypes, resource
import numpy as np
from tfaccel import host

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(2**18)  # 2 MiB: 512 pages of 4 KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

ctypes.CDLL(None).mallopt(-3, 2**17)  # M_MMAP_THRESHOLD, as TensorFlow's server does
faults()
before = faults()
assert host.keep_freed_memory()
faults()
print(before, faults())
"""
    before, after = map(int, fresh_python("-c", program, cwd=tmp_path).stdout.split())
    # A page may be a large one, but each block is mapped anew; afterwards, next to none.
    assert before >= 50
    assert after <= before / 10
