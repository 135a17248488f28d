"""What all tests share: four logical CPUs, and nothing that one test leaves to the next.

A test module that never starts TensorFlow says NEEDS_TENSORFLOW = False, and runs
without the seconds that its import takes.
"""

import functools
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfaccel

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    # A hook, because it comes before any fixture that might start TensorFlow.
    if getattr(getattr(item, "module", None), "NEEDS_TENSORFLOW", True):
        _start_tensorflow()


@functools.cache
def _start_tensorflow():
    """Splits the CPU in four and starts TensorFlow, so that it stays that way."""
    import tensorflow as tf

    # The same devices on every machine; what needs a GPU is no unit test.
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 4
    )
    assert len(tf.config.list_logical_devices("CPU")) == 4


@pytest.fixture(autouse=True)
def restored_dtype_policy():
    """Puts Keras's global dtype policy back after each test."""
    before = sys.modules["keras"].config.dtype_policy() if "keras" in sys.modules else "float32"
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].config.set_dtype_policy(before)


@pytest.fixture(autouse=True)
def restored_logging():
    """Puts tfaccel's logger back after each test: entry points redirect it."""
    logger = logging.getLogger("tfaccel")
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate = propagate
    logger.handlers[:] = handlers


@pytest.fixture
def log(caplog):
    """tfaccel's log lines are in `log.messages`."""
    logging.getLogger("tfaccel").propagate = True
    caplog.set_level(logging.INFO, logger="tfaccel")
    return caplog


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own; returns it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tfaccel"


@pytest.fixture(scope="session")
def fresh_python():
    """Runs Python with this tfaccel in a process of its own, as `subprocess.run` does."""
    checkout = str(Path(tfaccel.__file__).parents[1])

    def run(*arguments, cwd, **environment):
        paths = [checkout, *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    return run
