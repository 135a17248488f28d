"""What the host really gives this process: CPU quota and memory, container-aware."""

import ctypes
import math
import os
import platform
import resource
import shutil
import socket
import urllib.request
from pathlib import Path

# A worker's share, where several share a host (tfaccel.launch).
CPUS = "TFACCEL_CPUS"
_CGROUP = Path("/sys/fs/cgroup")
# glibc's <malloc.h>, and the largest threshold that it takes (half of a heap).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20


def cpu_count(cgroup: Path = _CGROUP) -> int:
    """Returns how many CPUs this process may use at once.

    The smallest of the CPUs present, those it may be scheduled on, the share that
    tfaccel.launch gave it, and the container's quota (cgroup v2 `cpu.max` or v1
    `cpu.cfs_quota_us`), rounded up.

    Args:
        cgroup: Where the control groups are mounted.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = min(count, len(os.sched_getaffinity(0)))
    if os.environ.get(CPUS, "").isdigit():
        count = max(1, min(count, int(os.environ[CPUS])))
    quota = _cpu_quota(cgroup)
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Returns the memory of the host or, if that is less, of the container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(cgroup / name)
        if text.isdigit():
            return min(total, int(text))
    return total


def process_memory_bytes() -> int:
    """Returns the resident memory of this process; where unknown (macOS), its peak."""
    pages = _read(Path("/proc/self/statm")).split()
    if pages:
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def keep_freed_memory() -> bool:
    """Has the C library keep freed memory for what is allocated next, up to 1 GiB.

    glibc does so by itself for the sizes that a program uses, until something sets its
    thresholds; from then on each larger block is a mapping of its own, whose pages the
    kernel fills with zeros every time.

    Returns:
        Whether it does; False without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    kept = mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    return bool(kept and mallopt(_M_TRIM_THRESHOLD, 2**30))


def free_disk_bytes(path: Path) -> int:
    """Returns the free bytes of the file system that `path` is or would be on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def check_network() -> None:
    """Raises OSError if there is no network: at once, where clients retry for long.

    Behind a proxy names need not resolve here, so nothing is checked.
    """
    if urllib.request.getproxies():
        return
    socket.getaddrinfo("storage.googleapis.com", 443)


def describe() -> dict[str, object]:
    """Returns the host's hardware for a report: processor, CPUs, memory, system."""
    return {
        "processor": _processor(),
        "cpus": cpu_count(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cpu_quota(cgroup: Path) -> float | None:
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if not quota:
        quota = _read(cgroup / "cpu/cpu.cfs_quota_us")
        period = _read(cgroup / "cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
