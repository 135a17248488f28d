import logging
import re
import sys
from pathlib import Path

import pytest
from absl import flags

from tfaccel import cli, config_flag, log, train
from tfaccel import config as config_lib
from tfaccel.errors import UserError
from tfaccel.log import logger

NEEDS_TENSORFLOW = False

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("[!_]*.py"))
QUICKSTART = next(str(path) for path in CONFIGS if path.stem == "quickstart")


@pytest.fixture
def print_config(capsys):
    """Returns {field: (value, origin)}, as --print_config tells them."""

    def run(*arguments):
        assert cli.main(train.run, ["train", "--print_config", *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        rows = [re.split(r" {2,}", line) for line in captured.out.splitlines()]
        assert all(len(row) == 3 for row in rows)
        return {name: (value, origin) for name, value, origin in rows}

    return run


@pytest.mark.parametrize("status", [0, 3])
def test_main_returns_the_status(status):
    assert cli.main(lambda argv: status, []) == status


def test_main_takes_the_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])
    seen = []
    cli.main(lambda argv: seen.extend(argv) or 0)
    assert seen == ["program", "--flag"]


@pytest.mark.parametrize(
    ("error", "status", "stderr"),
    [
        (UserError("not so"), 2, "error: not so\n"),
        (UserError("not\n  so"), 2, "error: not so\n"),
        # A long line is not cut short: what to write instead stands at its end.
        (UserError("x" * 1900 + " end"), 2, f"error: {'x' * 1900} end\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt("step 3/9"), 130, "interrupted: step 3/9\n"),
    ],
    ids=["error", "two lines", "long", "Ctrl-C", "Ctrl-C in a run"],
)
def test_main_tells_errors_in_one_line(error, status, stderr, capsys):
    def run(argv):
        raise error

    assert cli.main(run, []) == status
    assert capsys.readouterr() == ("", stderr)


@pytest.mark.parametrize("error", [ValueError("bug"), OSError("bug"), SystemExit(7)])
def test_main_lets_bugs_through(error):
    def run(argv):
        raise error

    with pytest.raises(type(error)):
        cli.main(run, [])


@pytest.mark.parametrize("level", [logging.NOTSET, logging.WARNING, logging.DEBUG])
def test_log_lines_can_be_recorded_wherever_they_go(level):
    logger.setLevel(level)
    lines, handlers = ["before"], list(logger.handlers)
    with log.recorded(lines):
        logger.info("jit: %s", "off")
        logger.debug("detail")
    logger.warning("after")
    assert [line for line in lines if line != "detail"] == ["before", "jit: off"]
    assert (logger.level, logger.handlers) == (level, handlers)


@pytest.mark.parametrize("argv", [["a", "--out=x", "b"], ["a", "b", "--out", "x"]])
def test_words_that_are_no_flags_are_taken_where_they_are_wanted(argv):
    flag_values, words = flags.FlagValues(), []
    flag_values.set_gnu_getopt(True)
    flags.DEFINE_string("out", None, "A file.", flag_values=flag_values)
    assert cli.parse(flag_values, ["program", *argv], "Usage.", words)
    assert (words, flag_values.out) == (["a", "b"], "x")


def test_words_that_are_no_flags_are_refused_elsewhere():
    with pytest.raises(UserError, match="received 'a b', which is no flag"):
        cli.parse(flags.FlagValues(), ["program", "a", "b"], "Usage.")


def test_main_sends_log_lines_to_the_terminal(capsys):
    def run(argv):
        logger.debug("detail")
        logger.info("model: %s", "resnet9")
        logger.warning("too late")
        return 0

    cli.main(run, [])
    # A second entry point in the same process must not double the lines.
    cli.main(run, [])
    assert capsys.readouterr() == (2 * "model: resnet9\n", 2 * "warning: too late\n")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_resolve_finds_packaged_configs_by_name(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Path(config_flag.resolve(path.stem)).read_text() == path.read_text()
    assert (
        config_flag.resolve(f"{path.stem}:runlocal")
        == f"{config_flag.resolve(path.stem)}:runlocal"
    )


def test_resolve_leaves_paths_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    # A folder, such as a run's, does not hide the packaged config.
    Path("quickstart").mkdir()
    assert config_flag.resolve("mine.py") == "mine.py"
    assert config_flag.resolve("./mine.py:argument") == "./mine.py:argument"
    assert config_flag.resolve(str(tmp_path / "mine.py")) == str(tmp_path / "mine.py")
    assert Path(config_flag.resolve("quickstart")).name == "quickstart.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quickstrat", "received --config=quickstrat, but there is no such file. "
                       "Did you mean quickstart?"),
        ("folder", "received --config=folder, which is a folder, expected a file."),
        # __init__.py is no config.
        ("__init__", "received --config=__init__, but there is no such file."),
    ],
)  # fmt: skip
def test_resolve_refuses(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(UserError) as error:
        config_flag.resolve(name)
    assert str(error.value).startswith(message)


def test_print_config_lists_every_field(print_config):
    rows = print_config("--config=quickstart")
    assert sorted(rows) == sorted(config_lib.schema())


def test_print_config_tells_values_and_where_they_come_from(print_config):
    rows = print_config(
        "--config=quickstart",
        "--config.seed=7",
        "--config.jit=true",
        "--config.data.dir=folder",
        # The default, but asked for.
        "--config.precision=auto",
        # The file's value, but asked for.
        "--config.duration=12ep",
    )
    expected = {
        "seed": ("7", "command line"),
        "jit": ("True", "command line"),
        "data.dir": ("'folder'", "command line"),
        "precision": ("'auto'", "command line"),
        "duration": ("'12ep'", "command line"),
        "global_batch_size": ("64", QUICKSTART),
        "model.arguments": ("{'width': 16}", QUICKSTART),
        "optimizer.weight_decay": ("0.0005", QUICKSTART),
        "model.weights": ("None", "default"),
        "accumulation": ("1", "default"),
        "devices.memory_growth": ("False", "default"),
    }
    assert {name: rows[name] for name in expected} == expected


@pytest.mark.parametrize("field", ["model.weights", "data.dir"])
def test_none_on_the_command_line_is_none(print_config, field):
    assert print_config("--config=quickstart", f"--config.{field}=None")[field][0] == "None"


def test_print_config_names_the_file_of_each_value(print_config, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from tfaccel import config as config_lib\n\n\n"
        "def get_config(arg=None):\n"
        "    config = config_lib.default()\n"
        "    config.seed = int(arg or 3)\n"
        "    return config\n"
    )
    assert print_config(f"--config={path}")["seed"] == ("3", str(path))
    assert print_config(f"--config={path}:4")["seed"] == ("4", f"{path}:4")
    origins = [origin for _, origin in print_config(f"--config={path}").values()]
    assert origins.count(str(path)) == 1
    assert set(origins) == {str(path), "default"}


def test_print_config_of_a_field_in_a_dictionary(print_config):
    rows = print_config("--config=quickstart", "--config.optimizer.arguments.momentum=0.8")
    assert rows["optimizer.arguments"] == (
        "{'momentum': 0.8, 'nesterov': True}",
        "command line",
    )
    assert rows["optimizer.name"] == ("'sgd'", "default")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--allow_growth"], ("True", "command line")),
        (["--allow_growth=true"], ("True", "command line")),
        (["--config.devices.memory_growth=true"], ("True", "command line")),
        (["--config.devices.memory_growth"], ("True", "command line")),
        (["--noallow_growth"], ("False", "default")),
        ([], ("False", "default")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_print_config_of_memory_growth(arguments, expected, print_config):
    assert print_config(*arguments)["devices.memory_growth"] == expected


def test_print_config_without_config_is_the_quickstart(print_config):
    assert print_config() == print_config("--config=quickstart")


def test_print_config_checks_first(capsys):
    argv = ["train", "--print_config", "--config.global_batch_size=0"]
    assert cli.main(train.run, argv) == 2
    assert capsys.readouterr().out == ""


def test_print_config_makes_no_folder(print_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    print_config(f"--workdir={tmp_path / 'run'}")
    assert list(tmp_path.iterdir()) == []
