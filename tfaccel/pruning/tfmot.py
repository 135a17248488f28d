"""TensorFlow Model Optimization, imported so that it changes nothing else."""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings

from tfaccel.errors import UserError, one_line
from tfaccel.lazy import tf

_VARIABLE = "TF_USE_LEGACY_KERAS"


def load() -> types.ModuleType:
    """Returns `tensorflow_model_optimization`; `tf.keras` stays Keras 3.

    TFMOT sets an environment variable that turns `tf.keras`, where nobody has used it
    yet, into Keras 2, here and in child processes.

    Raises:
        UserError: If it cannot be imported.
    """
    getattr(tf.keras, "layers")  # noqa: B009 - decides now which Keras that is
    before = os.environ.get(_VARIABLE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of distutils
            return importlib.import_module("tensorflow_model_optimization")
    except ImportError as error:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        raise UserError(
            f"TensorFlow Model Optimization cannot be imported ({one_line(error, 120)}): pip "
            f"install tensorflow-model-optimization setuptools ({python} needs the latter "
            "for distutils from 3.12 on)."
        ) from error
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before
