"""A run's config, with what each "auto" came to, and the command that repeats the run."""

from __future__ import annotations

import json
import shlex
from typing import Any

from absl import flags

from tfaccel import config as config_lib
from tfaccel import config_flag
from tfaccel.report.runs import Run


def fields(run: Run) -> list[dict[str, Any]]:
    """Returns every field: its value, whether it is the default, what "auto" came to.

    Returns:
        A list of `{"name", "value", "changed", "answer"}`, all text but "changed".
    """
    defaults = config_lib.flat(config_lib.default())
    decided = list(run.last_start.get("decided", []))
    for name in ("devices.intra_op_threads", "devices.inter_op_threads"):
        if "cpus" in run.hardware:
            decided.append(f"{name}: {run.hardware['cpus']}, one a CPU of this process")
    return [
        {
            "name": name,
            "value": text(value),
            "changed": name not in defaults or value != defaults[name],
            "answer": answer(name, run.config, decided) if value == "auto" else "",
        }
        for name, value in sorted(run.config.items())
    ]


def answer(field: str, config: dict[str, Any], decided: list[str]) -> str:
    """Returns what a field's "auto" came to.

    Args:
        field: Its full name, such as "distribution.strategy".
        config: The flat config.
        decided: The lines that the builders logged, such as "precision: float32
            (auto: no GPU)". The one that starts with the field's name answers it, else
            the one that starts with its section's.
    """
    if field.startswith("early_stopping.") and not config.get("early_stopping.patience"):
        return "not used: early_stopping.patience is 0"
    for name in (field, field.rpartition(".")[0]):
        for line in decided:
            start, colon, rest = line.partition(": ")
            if colon and name and start == name:
                return rest
    return "not recorded"


def text(value: Any) -> str:
    """Returns a config's value as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def command(run: Run) -> str:
    """Returns the command that runs this config once more, in a folder of its own.

    The one it was started with, without its --workdir; for a run started from
    Python, the fields in which it differs from the quickstart.
    """
    given = run.last_start.get("command")
    if given:
        return shlex.join(_without_workdir(given))
    base = _quickstart()
    changed = {k: v for k, v in run.config.items() if v is not None and v != base.get(k)}
    words = [f"--config.{name}={_flag(value)}" for name, value in sorted(changed.items())]
    return shlex.join(["python", "-m", "tfaccel.train", *words])


def go_on(run: Run) -> str:
    """Returns the command that goes on with a run that is not finished."""
    return f"{command(run)} --workdir={shlex.quote(str(run.folder))}"


def differing(runs: list[Run]) -> list[dict[str, Any]]:
    """Returns the fields in which some runs differ: `{"name", "values"}`."""
    names = sorted({name for run in runs for name in run.config})
    rows = []
    for name in names:
        values = [run.config.get(name) for run in runs]
        if any(value != values[0] for value in values):
            rows.append({"name": name, "values": [text(value) for value in values]})
    return rows


def _quickstart() -> dict[str, Any]:
    """The flat config of tfaccel.train without any flag."""
    flag_values = flags.FlagValues()
    flag_values(config_flag.define(flag_values, ["train"]))
    return config_lib.flat(flag_values.config)


def _flag(value: Any) -> str:
    return repr(value) if isinstance(value, dict) else text(value)


def _without_workdir(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("--workdir", "-workdir"):
            skip = True
        elif not word.startswith(("--workdir=", "-workdir=")):
            kept.append(word)
    return kept
