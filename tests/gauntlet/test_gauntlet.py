"""Whatever is switched on, the model is the one that plain Keras trains on one device.

The whole of it: python -m tfaccel.selftest --full --table=docs/gauntlet.md
"""

import dataclasses
import json
import signal
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfaccel.selftest import __main__ as main
from tfaccel.selftest import cases, table, trial
from tfaccel.selftest.cases import Case

EVERYTHING = cases.everything()
PAIRWISE = cases.pairwise(EVERYTHING)


@pytest.fixture(scope="module")
def selftest(fresh_python, tmp_path_factory):
    """What `python -m tfaccel.selftest` prints and writes."""
    folder = tmp_path_factory.mktemp("selftest")
    files = [f"--json={folder / 'rows.json'}", f"--table={folder / 'table.md'}"]
    done = fresh_python("-m", "tfaccel.selftest", *files, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, json.loads((folder / "rows.json").read_text())["results"], folder


@pytest.mark.parametrize("case", PAIRWISE, ids=str)
def test_trains_as_plain_keras_on_one_device(case, selftest):
    names = dataclasses.asdict(case).items()
    (row,) = [row for row in selftest[1] if names <= row.items()]
    assert row["passed"] and row["difference"] <= trial.TOLERANCE[case.precision]


def test_the_command_tells_and_writes_every_case(selftest):
    output, rows, folder = selftest
    count = len(PAIRWISE)
    assert f"{count} of {count} combinations train the same model as one device." in output
    assert len(rows) == count
    assert (folder / "table.md").read_text().count("| ok |") == count


def test_every_pair_of_values_is_among_the_chosen():
    def pairs(chosen):
        return set().union(*(cases._pairs(case) for case in chosen))

    assert pairs(PAIRWISE) == pairs(EVERYTHING)
    assert len(EVERYTHING) == 4 * 3 * 2**5
    assert len(PAIRWISE) < 20


def test_a_difference_would_be_seen():
    # The reference with clipping, against a training without it.
    unclipped = trial.run(Case(), tiny.strategy(1))
    assert unclipped.difference(trial.reference("float32", True)) > 0.01


PARTS = [(2, 1, True), (4, 1, False), (2, 4, False), (1, 4, True)]


@pytest.mark.parametrize(("replicas", "accumulation", "jit"), PARTS)
def test_with_batch_norm_replicas_times_micro_steps_is_what_counts(replicas, accumulation, jit):
    parts = replicas * accumulation
    expected = trial.run(
        Case(accumulation=parts), tiny.strategy(1), keras.layers.BatchNormalization
    )
    got = trial.run(
        Case(replicas=replicas, accumulation=accumulation, jit=jit),
        tiny.strategy(replicas),
        keras.layers.BatchNormalization,
    )
    # The moving statistics differ: parts one after the other move them further than
    # parts side by side, whose averages are taken. The last two weights of the norm.
    trainable = [i for i in range(len(got.weights)) if i not in (4, 5)]
    for index in trainable:
        np.testing.assert_allclose(
            got.weights[index], expected.weights[index], rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("replicas", [2, 4])
def test_synchronised_batch_norm_is_that_of_the_full_batch(replicas):
    def norm():
        return keras.layers.BatchNormalization(synchronized=True)

    expected = trial.run(Case(), tiny.strategy(1), keras.layers.BatchNormalization)
    got = trial.run(Case(replicas=replicas), tiny.strategy(replicas), norm)
    # The variance is taken as mean of squares less square of mean: float32 rounding.
    assert got.difference(expected) <= 2e-5


@pytest.mark.parametrize(("replicas", "jit"), [(1, True), (2, False), (4, True)])
def test_with_dropout_a_training_repeats_bit_for_bit(replicas, jit):
    def norm():
        return keras.layers.Dropout(0.3)

    case = Case(replicas=replicas, jit=jit)
    first, second = (trial.run(case, tiny.strategy(replicas), norm) for _ in range(2))
    for one, other in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_table_leaves_nothing_out():
    row = {"workers": 1, "replicas": 2, "precision": "float32", "jit": True, "clip": False}
    row |= {"accumulation": 4, "ema": True, "pruning": True}
    row |= {"difference": 2e-7, "tolerance": 1e-5}
    good = {**row, "passed": True, "error": None}
    bad = {**row, "passed": False, "error": None, "difference": 0.5}
    failed = {**row, "passed": False, "error": "no devices", "difference": None}
    lines = table.text([good, bad, failed]).splitlines()
    cells = "2 replica(s) float32 4 on off on on 2.0e-07 ok"
    assert " ".join(lines[1].split()) == cells
    assert lines[2].endswith("more than 1e-05")
    assert lines[3].endswith("no devices")
    assert lines[-1] == "1 of 3 combinations train the same model as one device."
    page = table.markdown([good, bad], {"gpus": []}, {"keras": "3"})
    assert page.count("| 2 replica(s) |") == 2


def test_what_the_gpus_here_cannot_run_is_told(monkeypatch, log):
    monkeypatch.setattr(main.devices, "configure", lambda **arguments: None)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU"] * 2)
    monkeypatch.setattr(main, "_strategy", lambda replicas, gpus: (replicas, gpus))
    monkeypatch.setattr(main.rows, "run", lambda case, strategy: (case.replicas, *strategy))
    assert set(main._run_here(full=True)) == {(1, 1, 2), (2, 2, 2)}
    assert log.messages == [
        "selftest: 96 combinations left out, which need more replicas than the 2 GPU(s) here"
    ]


def test_what_workers_find_is_told_as_it_comes(log):
    program = "print('[0] selftest: a: same'); print('[1] selftest: a: same'); exit('boom')"
    assert main._relayed([sys.executable, "-c", program]) == (1, "boom")
    assert log.messages == ["selftest: a: same"]


def test_ctrl_c_ends_the_workers_and_leaves_nothing_behind(monkeypatch):
    def interrupt(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(main.logger, "info", interrupt)
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    program = "import time; print('[0] selftest: a', flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        main._relayed([sys.executable, "-c", program])
    assert started[0].wait(timeout=60) == -signal.SIGTERM
    # A timer that still runs would keep the process from ending.
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)
