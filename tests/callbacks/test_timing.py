"""TimeSplit and timing.csv."""

import csv

import numpy as np
import pytest
import tiny
from both import LENGTH, both, ours, stock

from tfaccel import callbacks, loop
from tfaccel.callbacks.time_split import PARTS
from tfaccel.checkpoint import Checkpointer


def parts(path, every=0, first_step=0):
    measuring = [callbacks.TimeSplit(), callbacks.Throughput(8), callbacks.DeviceMemory()]
    timing = callbacks.TimingCSV(path, *measuring, every=every, first_step=first_step)
    return [*measuring, timing]


def rows_of(path):
    return list(csv.DictReader(path.open(newline="")))


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when a test says so."""

    class Clock:
        now = 0.0

    monkeypatch.setattr("time.perf_counter", lambda: Clock.now)
    return Clock


def test_each_moment_is_counted_once_and_as_what_it_was(clock):
    split = callbacks.TimeSplit()

    def after(seconds, event, *arguments):
        clock.now += seconds
        getattr(split, event)(*arguments)

    split.on_train_begin()
    split.on_spent("compile", 7.0)  # tracing, before
    after(1, "on_epoch_begin", 0)
    after(2, "on_train_batch_begin", 0)
    split.on_spent("input_wait", 0.5, "step")
    after(30, "on_train_batch_end", 0)  # the first call compiles
    after(4, "on_train_batch_begin", 1)
    split.on_spent("input_wait", 3.0, "step")
    after(50, "on_train_batch_end", 4)
    after(5, "on_test_begin")
    after(60, "on_test_end")
    after(6, "on_epoch_end", 0)
    clock.now += 8
    split.on_spent("checkpoint", 7.5, "other")
    after(0.5, "on_train_end")
    assert split.seconds == {
        "input_wait": 3.0,
        "step": 47.0,
        "evaluation": 60.0,
        "checkpoint": 7.5,
        "compile": 37.0,
        "other": 1 + 2 + 4 + 5 + 6 + 0.5 + 0.5,
    }
    assert sum(split.seconds.values()) == clock.now + 7.0


@both
def test_a_row_an_epoch_with_all_parts(fit, tmp_path):
    added = parts(tmp_path / "timing.csv")
    fit(tiny.model(), added)
    rows = rows_of(tmp_path / "timing.csv")
    assert [(row["step"], row["epoch"]) for row in rows] == [("4", "0"), ("8", "1")]
    columns = [f"{part}_seconds" for part in PARTS]
    assert list(rows[0]) == [
        "step",
        "epoch",
        "seconds",
        *columns,
        "images_per_second",
        "host_memory_bytes",
    ]
    split = added[0].seconds
    for row in rows:
        total = sum(float(row[name] or 0) for name in columns)
        assert float(row["seconds"]) == pytest.approx(total, rel=1e-5)
        assert (row["input_wait_seconds"] == "") == (fit is stock)
        assert float(row["evaluation_seconds"]) > 0
    for part in PARTS:
        # Seven digits are written, of a window's difference.
        got = sum(float(row[f"{part}_seconds"] or 0) for row in rows)
        assert got == pytest.approx(split[part], abs=1e-4)
    assert float(rows[0]["compile_seconds"]) > 0
    assert float(rows[1]["compile_seconds"]) == 0


def test_the_checkpoint_after_a_step_stands_in_its_row(tmp_path):
    saving = Checkpointer(tmp_path / "checkpoints", LENGTH, every="4st")
    ours(tiny.model(), parts(tmp_path / "timing.csv", every=2), checkpointer=saving)
    rows = {
        row["step"]: float(row["checkpoint_seconds"])
        for row in rows_of(tmp_path / "timing.csv")
    }
    assert [step for step, seconds in rows.items() if seconds > 0] == ["4", "8"]


@pytest.mark.parametrize("stop_at", [5, 6, 7])
def test_a_resumed_run_has_each_row_once_and_its_times_add_up(stop_at, tmp_path):
    from test_loop import Kill

    path = tmp_path / "timing.csv"

    def run(*kill):
        saving = Checkpointer(tmp_path / "checkpoints", LENGTH, every="3st")
        newest = saving.newest()
        first = saving.read_state(newest)["step"] if newest else 0
        added = parts(path, every=2, first_step=first)
        ours(tiny.model(), [*added, *kill], checkpointer=saving)
        return added

    with pytest.raises(KeyboardInterrupt):
        run(Kill(stop_at))
    split, throughput, *_ = run()
    rows = rows_of(path)
    assert [row["step"] for row in rows] == ["2", "4", "6", "8"]
    for part in PARTS:
        got = sum(float(row[f"{part}_seconds"]) for row in rows)
        assert got == pytest.approx(split.seconds[part], abs=1e-3), part
    assert throughput.images <= 7 * 8


@pytest.mark.parametrize("pace", [1e-9, 1e9], ids=["a step a call", "an epoch a call"])
def test_waiting_for_batches_is_told_apart_from_the_step(pace, monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", pace)
    monkeypatch.setattr(loop, "_SHORT_STEPS", float("inf"))  # every call is looked at
    # A microsecond a step, as a call cannot have waited longer than it took.
    monkeypatch.setattr(loop.input_wait, "seconds", lambda times, end: 1e-6 * len(times))
    split = callbacks.TimeSplit()
    ours(tiny.model(), [split])
    # Eight steps, of which the first call's, always one, compile.
    assert split.seconds["input_wait"] == pytest.approx(7e-6)


def test_where_steps_are_very_short_one_call_in_ten_is_looked_at(monkeypatch):
    monkeypatch.setattr(loop.input_wait, "seconds", lambda times, end: 0.5)
    waiting, pace, looked = loop._Waiting(), loop._Pace(), np.ones((1, 2))
    pace.steps = loop._SHORT_STEPS - 1
    assert all(waiting.due(pace) for _ in range(9))
    pace.steps = loop._SHORT_STEPS
    assert [waiting.due(pace) for _ in range(20)] == [True, *[False] * 9] * 2
    assert waiting.seconds(looked, 2.0) == 0.5
    assert waiting.seconds(looked[:0], 8.0) == 2.0  # a quarter, as in the last one
    # The two clocks differ by microseconds; what a call waited is a part of it.
    assert waiting.seconds(looked, 0.25) == 0.25
