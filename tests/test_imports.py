import sys
import types
from pathlib import Path

import pytest

import tfaccel
from tfaccel import lazy
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("[!_]*.py"))
# Runs an entry point, then tells its status and what it has imported.
ENTRY_POINT = """
import importlib, sys
from tfaccel import cli
status = cli.main(importlib.import_module(sys.argv[1]).run, sys.argv[1:])
print("status", status, *sorted({"tensorflow", "keras", "jax"} & set(sys.modules)))
"""


def modules_after(fresh_python, tmp_path, code):
    """The top-level modules that code imports, in a process of its own."""
    # A fresh interpreter may hold modules of its own, such as site's.
    report = "import sys; before = set(sys.modules)\n{}\nprint(*set(sys.modules) - before)"
    done = fresh_python("-c", report.format(code), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_import_tfaccel_costs_nothing(fresh_python, tmp_path):
    imported = modules_after(fresh_python, tmp_path, "import tfaccel")
    assert "tfaccel" in imported
    assert imported.isdisjoint({"tensorflow", "keras", "numpy", "ml_collections", "absl"})


@pytest.mark.parametrize(
    "name", sorted({"pruning", "results", *tfaccel.__all__} - {"callbacks"})
)
def test_a_public_name_waits_with_tensorflow(fresh_python, tmp_path, name):
    imported = modules_after(fresh_python, tmp_path, f"from tfaccel import {name}")
    assert "tfaccel" in imported
    assert imported.isdisjoint({"tensorflow", "keras"})


@pytest.mark.parametrize(
    ("arguments", "first_line"),
    [
        (["tfaccel.train", "--help"], "Trains an image classifier as a config says"),
        (["tfaccel.train", "-h"], "Trains an image classifier as a config says"),
        (["tfaccel.evaluate", "--help"], "Evaluates a finished run's model.keras"),
        (["tfaccel.report.__main__", "--help"], "Builds a page that shows what a run did"),
        (["tfaccel.export.__main__", "--help"], "Exports a finished run's model.keras"),
        (["tfaccel.train", "--print_config"], "accumulation "),
        *(
            (["tfaccel.train", "--print_config", f"--config={path.stem}"], "accumulation ")
            for path in CONFIGS
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_questions_are_answered_without_tensorflow(
    fresh_python, tmp_path, arguments, first_line
):
    done = fresh_python("-c", ENTRY_POINT, *arguments, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith(first_line)
    assert done.stdout.splitlines()[-1] == "status 0"
    assert list(tmp_path.iterdir()) == []


def test_help_names_all_flags(fresh_python, tmp_path):
    done = fresh_python("-m", "tfaccel.train", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    flags = done.stdout.partition("flags:\n")[2]
    names = [line.split(":")[0].strip() for line in flags.splitlines()]
    assert names == [
        "--allow_growth",
        "--config",
        "--print_config",
        "--profile_steps",
        "--workdir",
    ]


def test_another_keras_backend_is_refused_in_one_line(fresh_python, tmp_path):
    done = fresh_python(
        "-m", "tfaccel.train", "--config=quickstart", cwd=tmp_path, KERAS_BACKEND="jax"
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    # The last line, as TensorFlow writes lines of its own where it finds no GPU.
    assert done.stderr.splitlines()[-1] == (
        "error: Keras runs on the 'jax' backend, tfaccel needs 'tensorflow': set "
        "KERAS_BACKEND=tensorflow before Keras is imported."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_keras_that_runs_on_another_backend_is_refused(monkeypatch):
    # As keras.json can choose it, or a notebook that has imported Keras before.
    other = types.ModuleType("keras")
    other.config = types.SimpleNamespace(backend=lambda: "torch")
    monkeypatch.setitem(sys.modules, "keras", other)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    with pytest.raises(UserError) as error:
        lazy._import_keras()
    assert str(error.value) == (
        "Keras runs on the 'torch' backend, tfaccel needs 'tensorflow': set "
        "KERAS_BACKEND=tensorflow before Keras is imported."
    )


@pytest.mark.parametrize("name", tfaccel.__all__)
def test_public_names_resolve(name):
    assert getattr(tfaccel, name).__name__ in (name, f"tfaccel.{name}")
    assert name in dir(tfaccel)


def test_public_callbacks_resolve():
    from tfaccel import callbacks

    for name in callbacks.__all__:
        assert getattr(callbacks, name).__name__ == name


@pytest.mark.parametrize("module", ["tfaccel", "tfaccel.callbacks"])
def test_an_unknown_name_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nmae'"):
        assert sys.modules[module].nmae
