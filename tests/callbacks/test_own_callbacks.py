"""MetricsCSV, Throughput and RunProgress, in our loop and in Keras's own fit."""

import csv
import io
import sys
import time
import types

import numpy as np
import pytest
import tiny
from both import LENGTH, both, ours, stock

from tfaccel import callbacks, loop
from tfaccel.callbacks import pace
from tfaccel.callbacks.run_progress import _duration


def rows_of(path):
    return list(csv.DictReader(path.open(newline="")))


@both
def test_metrics_csv_has_a_row_an_epoch(fit, tmp_path):
    history = fit(tiny.model(), [callbacks.MetricsCSV(tmp_path / "metrics.csv")])
    rows = rows_of(tmp_path / "metrics.csv")
    assert [(row["step"], row["epoch"]) for row in rows] == [("4", "0"), ("8", "1")]
    for index, row in enumerate(rows):
        assert float(row["learning_rate"]) == pytest.approx(0.05)
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            # Seven digits are written.
            assert float(row[name]) == pytest.approx(history.history[name][index], rel=1e-6)


def test_metrics_csv_tells_the_rate_of_a_stock_fit_that_follows_ours(tmp_path):
    written = callbacks.MetricsCSV(tmp_path / "metrics.csv")
    model = tiny.model()
    ours(model, [written])
    model.optimizer.learning_rate = 0.01
    stock(model, [written])
    rates = [float(row["learning_rate"]) for row in rows_of(tmp_path / "metrics.csv")]
    assert rates == pytest.approx([0.05, 0.05, 0.01, 0.01])


def test_metrics_csv_rows_are_means_since_the_row_before(tmp_path):
    history = ours(tiny.model(), [callbacks.MetricsCSV(tmp_path / "metrics.csv", every=2)])
    rows = rows_of(tmp_path / "metrics.csv")
    assert [row["step"] for row in rows] == ["2", "4", "6", "8"]
    losses = [float(row["loss"]) for row in rows]
    for epoch in range(2):
        mean = np.mean(losses[2 * epoch : 2 * epoch + 2])
        assert mean == pytest.approx(history.history["loss"][epoch], rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
    assert [row["val_loss"] != "" for row in rows] == [False, True, False, True]


@pytest.mark.parametrize("stop_at", [5, 6, 7])
def test_metrics_csv_of_a_resumed_run_equals_that_of_a_whole_one(stop_at, tmp_path):
    from test_loop import Kill

    from tfaccel.checkpoint import Checkpointer

    def run(folder, kill=None):
        saving = Checkpointer(folder, LENGTH, every="3st")
        newest = saving.newest()
        first = saving.read_state(newest)["step"] if newest else 0
        metrics = callbacks.MetricsCSV(folder / "metrics.csv", every=2, first_step=first)
        loop.fit(
            tiny.model(),
            tiny.training(count=32),
            LENGTH,
            validation=tiny.evaluation(count=16),
            callbacks=[metrics, *([Kill(kill)] if kill else [])],
            checkpointer=saving,
        )

    run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", stop_at)
    run(tmp_path / "parts")
    whole, parts = (rows_of(tmp_path / name / "metrics.csv") for name in ("whole", "parts"))
    assert [row["step"] for row in parts] == [row["step"] for row in whole]
    for got, want in zip(parts, whole, strict=True):
        assert got == want


def test_metrics_csv_drops_half_a_row(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,epoch,learning_rate,loss\n4,0,0.05,1.5\nhal")
    ours(tiny.model(), [callbacks.MetricsCSV(path, first_step=4)], validation=False)
    assert [row["step"] for row in rows_of(path)] == ["4", "8", "12"]


@both
def test_throughput_leaves_the_first_call_and_the_time_between_out(fit, monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 0)
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    throughput = callbacks.Throughput(global_batch_size=8)
    if fit is stock:
        stock(tiny.model(), [throughput])
        assert throughput.images == 7 * 8  # eight steps, the first one compiles
        assert throughput.images_per_second == throughput.images / throughput.seconds
    else:
        # Called by hand: two seconds a look at the clock, so two a call.
        throughput.on_train_begin()
        for first, last in ((0, 0), (1, 3), (4, 4)):
            throughput.on_train_batch_begin(first)
            throughput.on_train_batch_end(last)
        assert (throughput.images, throughput.seconds) == (4 * 8, 4.0)
        assert throughput.images_per_second == 8.0


def test_throughput_before_the_second_call_is_unknown():
    assert callbacks.Throughput(8).images_per_second is None


class Terminal(io.StringIO):
    def isatty(self):
        return True


@both
def test_progress_without_a_terminal_is_plain_lines(fit):
    stream = io.StringIO()
    progress = callbacks.RunProgress(8, line_seconds=1e9, stream=stream)
    fit(tiny.model(), [callbacks.Throughput(8), progress])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("step 4/8  epoch 1  ")
    assert "val_accuracy" in lines[0]
    assert "images_per_second" not in lines[0]
    assert lines[1].endswith("  done")
    assert "\r" not in stream.getvalue()


@both
def test_progress_on_a_terminal_is_a_bar_over_the_whole_run(fit):
    stream = Terminal()
    progress = callbacks.RunProgress(8, stream=stream)
    fit(tiny.model(), [progress])
    assert progress.step == 8
    assert "8/8" in stream.getvalue()
    assert "step 4/8  epoch 1" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (61, "1 min 01 s"),
        (3600, "1 h 00 min"),
        (7325, "2 h 02 min"),
    ],
)
def test_time_left_in_words(seconds, text):
    assert _duration(seconds) == text


def test_the_time_left_does_not_count_the_first_call_which_compiles(monkeypatch):
    clock = iter([100.0, 104.0])  # the first call ended at 100, the second two steps later
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    left = pace.Pace(step=4)
    assert left.seconds_left(20) is None
    left.advance(1)
    assert left.seconds_left(20) is None
    left.advance(2)
    assert left.seconds_left(20) == 2.0 * 13


def test_progress_in_a_notebook_is_one_display_that_changes(monkeypatch):
    shown = []

    class Handle:
        def update(self, drawn):
            shown.append(drawn.data)

    class Html:
        def __init__(self, data):
            self.data = data

    def display(drawn, display_id):
        assert display_id is True
        shown.append(drawn.data)
        return Handle()

    class ZMQInteractiveShell:
        pass

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell
    ipython.display = types.SimpleNamespace(display=display, HTML=Html)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    ours(tiny.model(), [callbacks.RunProgress(8)])
    assert shown[0] == '<progress value="0" max="8"></progress> 0/8 '
    assert shown[-1].startswith('<progress value="8" max="8"></progress> 8/8 epoch 2  ')
    assert shown[-1].endswith("done")
