"""TensorFlow and Keras, imported at the first attribute that is asked of them.

``import tensorflow`` takes seconds. Modules of plain functions take ``tf`` and
``keras`` from here, so that flags, configs and their errors never wait for it.
"""

import importlib
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfaccel.errors import UserError


def attributes(
    package: str, *, modules: tuple[str, ...] = (), names: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`: it imports at the first use.

    Args:
        package: The package's `__name__`.
        modules: Submodules to offer.
        names: Names to offer, with the modules they live in.
    """

    def getattribute(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in (names or {}):
            return getattr(importlib.import_module(names[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute


def make_callable(module: str, target: str) -> None:
    """Makes a module callable as a function of the same name elsewhere.

    Importing a package's submodule hides a function of that name in the package.

    Args:
        module: The module's `__name__`.
        target: The function, as "module:name".
    """

    class CallableModule(types.ModuleType):
        def __call__(self, *arguments, **options):
            source, name = target.split(":")
            return getattr(importlib.import_module(source), name)(*arguments, **options)

    sys.modules[module].__class__ = CallableModule


def _import_tensorflow() -> types.ModuleType:
    _check_backend(os.environ.get("KERAS_BACKEND") or "tensorflow")
    return importlib.import_module("tensorflow")


def _import_keras() -> types.ModuleType:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    # Before the import, which raises if that backend is not installed.
    _check_backend(os.environ["KERAS_BACKEND"])
    module = importlib.import_module("keras")
    _check_backend(module.config.backend())
    return module


def _check_backend(backend: str) -> None:
    if backend != "tensorflow":
        raise UserError(
            f"Keras runs on the {backend!r} backend, tfaccel needs 'tensorflow': "
            "set KERAS_BACKEND=tensorflow before Keras is imported."
        )


class _LazyModule(types.ModuleType):
    def __init__(self, name, load):
        super().__init__(name)
        self._load = load

    def __getattr__(self, attribute):
        module = self._load()
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)


if TYPE_CHECKING:
    import keras
    import tensorflow as tf
else:
    keras = _LazyModule("keras", _import_keras)
    tf = _LazyModule("tensorflow", _import_tensorflow)
