"""TFMOT's import leaves `tf.keras` and the environment as they were."""

import sys

import pytest

from tfaccel.errors import UserError
from tfaccel.pruning import tfmot

IMPORT = """
import os, subprocess, sys
import tensorflow as tf
from tfaccel.pruning import tfmot
tfmot.load()
def child():
    code = "import os; print(os.environ.get('TF_USE_LEGACY_KERAS'))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
print(os.environ.get("TF_USE_LEGACY_KERAS"), child().stdout.strip())
print(tf.keras.layers.Dense.__module__.split(".")[0])
"""


@pytest.mark.parametrize("before", [None, "0"])
def test_tf_keras_and_the_environment_stay_as_they_were(
    before, fresh_python, tmp_path, monkeypatch
):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    environment = {} if before is None else {"TF_USE_LEGACY_KERAS": before}
    done = fresh_python("-c", IMPORT, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [f"{before} {before}", "keras"]


def test_without_setuptools_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_model_optimization", None)
    with pytest.raises(UserError, match="pip install tensorflow-model-optimization setuptools"):
        tfmot.load()
