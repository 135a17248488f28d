import ast
import importlib.util
import inspect
import json
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_dict

from tfaccel import config as config_lib
from tfaccel import config_flag, step
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("[!_]*.py"))
BUILDERS = [(section, target) for section, ts in config_lib.SECTIONS.items() for target in ts]


def section_of(config, section):
    for part in filter(None, section.split(".")):
        config = config[part]
    return config


def load(path, *arguments):
    """The config of a file, as Python sees it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(*arguments)


def from_command_line(*arguments):
    """The config that a command line leads to."""
    flag_values = flags.FlagValues()
    argv = config_flag.define(flag_values, ["train", *arguments])
    assert config_flag.parse(flag_values, argv, "")
    config_lib.check(flag_values.config)
    return config_lib.flat(flag_values.config)


def test_default_is_locked():
    config = config_lib.default()
    with pytest.raises(AttributeError, match="locked"):
        config.new = 1
    with pytest.raises(AttributeError, match="locked"):
        config.optimizer.learning_rat = 1


def test_default_is_made_anew():
    config_lib.default().data.name = "other"
    assert config_lib.default().data.name == "digits"


def test_default_passes_the_check():
    config_lib.check(config_lib.default())


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("seed", 0),
        ("duration", "10ep"),
        ("global_batch_size", 128),
        ("precision", "auto"),
        ("jit", "auto"),
        ("data.name", "digits"),
        ("data.dir", None),
        ("data.placement", "host"),
        ("model.name", "resnet9"),
        ("model.weights", None),
        ("optimizer.name", "sgd"),
        ("optimizer.learning_rate", 0.1),
        ("distribution.strategy", "auto"),
        ("distribution.logical_cpus", 0),
        ("checkpoint.every", "1ep"),
        ("pruning.final_sparsity", 0.0),
    ],
)
def test_names_that_scripts_rely_on(name, default):
    assert config_lib.flat(config_lib.default())[name] == default


def test_each_field_belongs_to_one_builder():
    names = [
        f"{section}.{name}".lstrip(".")
        for section, target in BUILDERS
        for name in config_lib.options(config_lib.builder(target))
    ]
    assert sorted(names) == sorted(set(names)) == sorted(config_lib.schema())


def test_a_field_of_two_builders_is_a_bug(monkeypatch):
    twice = {**config_lib.SECTIONS, "": config_lib.SECTIONS[""] * 2}
    monkeypatch.setattr(config_lib, "SECTIONS", twice)
    with pytest.raises(TypeError, match="seed belongs to two builders"):
        config_lib.schema()


@pytest.mark.parametrize(("section", "target"), BUILDERS)
def test_defaults_are_those_of_the_signature(section, target):
    values = section_of(config_lib.default(), section)
    signature = inspect.signature(config_lib.builder(target))
    keyword_only = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert keyword_only, "a builder without keyword-only arguments has no section"
    for name, default in keyword_only.items():
        if isinstance(values[name], config_dict.ConfigDict):
            assert values[name].to_dict() == (default or {})
        else:
            assert values[name] == default
            assert type(values[name]) is type(default)


@pytest.mark.parametrize(("section", "target"), BUILDERS)
def test_arguments_are_a_builders_keyword_only_ones(section, target):
    build = config_lib.builder(target)
    arguments = config_lib.arguments(build, section_of(config_lib.default(), section))
    parameters = inspect.signature(build).parameters.values()
    names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert sorted(arguments) == sorted(names)
    # A builder knows no config object.
    assert not any(isinstance(v, config_dict.ConfigDict) for v in arguments.values())


@pytest.mark.parametrize(
    ("target", "section", "positional", "expected"),
    [
        ("tfaccel.step:choose", "", (), step.Options()),
        ("tfaccel.data.pipeline:place", "data", (), "host"),
        ("tfaccel.optimizers:scale_rate", "optimizer", (128,), 0.1),
        ("tfaccel.pruning:build", "pruning", (None,), []),
        ("tfaccel.callbacks.early_stopping:build", "early_stopping", (), []),
    ],
)
def test_a_builder_takes_its_arguments(target, section, positional, expected):
    build = config_lib.builder(target)
    arguments = config_lib.arguments(build, section_of(config_lib.default(), section))
    assert build(*positional, **arguments) == expected


def test_arguments_pass_changed_values_on():
    def build(model, *, name: str = "sgd", arguments: dict | None = None):
        return model, name, arguments

    config = config_lib.default()
    config.optimizer.name = "lion"
    config.optimizer.arguments = {"beta_1": 0.5}
    assert build("model", **config_lib.arguments(build, config.optimizer)) == (
        "model",
        "lion",
        {"beta_1": 0.5},
    )


def test_there_are_configs():
    assert "quickstart" in [path.stem for path in CONFIGS]


@pytest.mark.parametrize("arguments", [(), ("runlocal",)], ids=["as it is", "runlocal"])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_can_be_run(path, arguments):
    config = load(path, *arguments)
    config_lib.check(config)
    assert sorted(config_lib.flat(config)) == sorted(config_lib.schema())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_runlocal_shrinks_every_config(path):
    whole, small = (config_lib.flat(load(path, *a)) for a in ((), ("runlocal",)))
    assert small["duration"] == "20st"
    assert small["global_batch_size"] == 32
    changed = {name for name in whole if whole[name] != small[name]}
    assert changed <= {"duration", "global_batch_size", "log_every"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_states_only_what_differs_from_the_defaults(path):
    defaults = config_lib.flat(config_lib.default())
    stated = {
        ast.unparse(target).removeprefix("config."): ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    assert stated
    assert [name for name, value in stated.items() if defaults[name] == value] == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_flat_and_update_are_inverse(path):
    flat = config_lib.flat(load(path))
    config = config_lib.default()
    # By way of JSON, as a run's config.json goes.
    config_lib.update(config, json.loads(json.dumps(flat)))
    assert config_lib.flat(config) == flat
    with pytest.raises(AttributeError, match="locked"):
        config.new = 1


def test_update_can_fill_fields_whose_default_is_none():
    config = config_lib.default()
    values = {"data.dir": "data", "data.image_size": 64, "jit": True}
    config_lib.update(config, values)
    flat = config_lib.flat(config)
    assert {name: flat[name] for name in values} == values


def test_update_refuses_an_unknown_field():
    with pytest.raises(UserError) as error:
        config_lib.update(config_lib.default(), {"optimizer.learning_rat": 1})
    assert "optimizer.learning_rat, which does not exist" in str(error.value)
    assert "Did you mean optimizer.learning_rate" in str(error.value)


def test_differences():
    old = {"seed": 0, "data.dir": None, "jit": "auto", "gone": 1}
    new = {"seed": 1, "data.dir": "data", "jit": "auto", "added": 2}
    assert config_lib.differences(old, new) == [
        "added: None -> 2",
        "data.dir: None -> 'data'",
        "gone: 1 -> None",
        "seed: 0 -> 1",
    ]
    assert config_lib.differences(old, dict(old)) == []


def test_runlocal_returns_a_small_config():
    config = config_lib.default()
    config.optimizer.learning_rate = 0.3
    small = config_lib.flat(config_lib.runlocal(config))
    assert config_lib.differences(config_lib.flat(config_lib.default()), small) == [
        "duration: '10ep' -> '20st'",
        "global_batch_size: 128 -> 32",
        "log_every: '50st' -> '5st'",
        "optimizer.learning_rate: 0.1 -> 0.3",
    ]


@pytest.mark.parametrize(
    ("argument", "name", "expected"),
    [
        ("--config.seed=7", "seed", 7),
        ("--config.duration=3ep", "duration", "3ep"),
        ("--config.optimizer.learning_rate=1e-3", "optimizer.learning_rate", 0.001),
        ("--config.optimizer.learning_rate=1", "optimizer.learning_rate", 1.0),
        # Their default is None.
        ("--config.data.dir=some/folder", "data.dir", "some/folder"),
        ("--config.early_stopping.monitor=2", "early_stopping.monitor", "2"),
        # Either a word, or a value of another type.
        ("--config.devices.intra_op_threads=3", "devices.intra_op_threads", 3),
        ("--config.devices.intra_op_threads=auto", "devices.intra_op_threads", "auto"),
        ("--config.jit=true", "jit", True),
        ("--config.jit=True", "jit", True),
        ("--config.jit=false", "jit", False),
        ("--config.jit=False", "jit", False),
        ("--config.jit=auto", "jit", "auto"),
        ("--config.data.augment.flip=true", "data.augment.flip", True),
        ("--config.data.augment.flip", "data.augment.flip", True),
        ("--noconfig.data.augment.flip", "data.augment.flip", False),
        # One of the file's arguments, all of them, or none.
        ("--config.optimizer.arguments.momentum=0.8", "optimizer.arguments",
         {"momentum": 0.8, "nesterov": True}),
        ("--config.optimizer.arguments={'momentum': 0.5}", "optimizer.arguments",
         {"momentum": 0.5}),
        ("--config.optimizer.arguments={}", "optimizer.arguments", {}),
    ],
)  # fmt: skip
def test_any_field_can_be_set_on_the_command_line(argument, name, expected):
    value = from_command_line("--config=quickstart", argument)[name]
    assert value == expected
    assert type(value) is type(expected)


def test_a_field_without_default_takes_a_number():
    flat = from_command_line("--config.data.name=synthetic", "--config.data.image_size=64")
    assert flat["data.image_size"] == 64


def test_the_command_line_wins_over_the_file_wherever_it_stands():
    for order in (1, -1):
        arguments = ["--config=quickstart", "--config.global_batch_size=96"][::order]
        assert from_command_line(*arguments)["global_batch_size"] == 96


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config=quickstart:runlocal"],
        ["--config", "quickstart:runlocal"],
        ["-config=quickstart:runlocal"],
        ["--config=cifar10_vgg16", "--config=quickstart:runlocal"],
    ],
    ids=" ".join,
)
def test_ways_to_name_a_config(arguments):
    expected = load(next(p for p in CONFIGS if p.stem == "quickstart"), "runlocal")
    assert from_command_line(*arguments) == config_lib.flat(expected)


def test_a_config_file_with_the_whole_path(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from tfaccel import config as config_lib\n\n\n"
        "def get_config(arg=None):\n"
        "    config = config_lib.default()\n"
        "    config.seed = 3 if arg == 'three' else 2\n"
        "    return config\n"
    )
    assert from_command_line(f"--config={path}")["seed"] == 2
    assert from_command_line(f"--config={path}:three")["seed"] == 3


@pytest.mark.parametrize("name", ["seed", "optimizer", "data.augment", "optimizer.arguments.x"])
def test_check_name_accepts_fields_sections_and_arguments(name):
    config_lib.check_name(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("learning_rate", "Did you mean optimizer.learning_rate?"),
        ("model.crop_padding", "Did you mean data.augment.crop_padding?"),
        ("optimizer.learning_rat", "Did you mean optimizer.learning_rate"),
        ("sead", "Did you mean seed"),
        ("optimizer.name.x", "Did you mean optimizer.name"),
    ],
)
def test_check_name_offers_the_nearest(name, hint):
    with pytest.raises(UserError) as error:
        config_lib.check_name(name)
    message = f"received the config field {name}, which does not exist. {hint}"
    assert str(error.value).startswith(message)
    assert str(error.value).endswith(" --print_config lists all fields.")


def test_check_misses_a_field():
    config = config_lib.default().unlock()
    del config["seed"]
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    assert str(error.value) == (
        "the config has no field seed: start from tfaccel.config.default() and change "
        "what differs."
    )
