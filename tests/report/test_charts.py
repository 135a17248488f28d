"""Curves as data: what is drawn, how long runs are thinned, what NaN becomes."""

import numpy as np
import pytest
import run_folders

from tfaccel.report import charts, runs

NEEDS_TENSORFLOW = False


def test_one_run_has_training_and_validation_in_a_chart(tmp_path):
    run = runs.read(run_folders.write(tmp_path / "run", epochs=2, steps_per_epoch=10))
    found = charts.of([run])
    assert [(chart["title"], chart["unit"]) for chart in found] == [
        ("Loss", ""),
        ("Accuracy", "%"),
        ("Learning rate", ""),
        ("Throughput", "images/s"),
        ("Waiting for input", "% of a step"),
        ("Memory", "GiB"),
    ]
    loss, accuracy = found[:2]
    assert [series["label"] for series in loss["series"]] == ["training", "validation"]
    assert loss["series"][0]["x"] == [5, 10, 15, 20]
    assert loss["series"][1]["x"] == [10, 20]
    assert loss["series"][0]["y"][0] == pytest.approx(run.metrics[0]["loss"], rel=1e-4)
    assert accuracy["series"][0]["y"][0] == pytest.approx(
        100 * run.metrics[0]["accuracy"], rel=1e-4
    )


def test_several_runs_have_a_chart_a_curve(tmp_path):
    found = [
        runs.read(run_folders.write(tmp_path / name, epochs=2, seed=seed))
        for seed, name in enumerate(("one", "two"))
    ]
    titles = [chart["title"] for chart in charts.of(found)]
    assert titles[:4] == [
        "Loss, training",
        "Loss, validation",
        "Accuracy, training",
        "Accuracy, validation",
    ]
    for chart in charts.of(found):
        assert [series["run"] for series in chart["series"]] == [0, 1]


def test_a_run_without_validation_has_no_curve_of_it(tmp_path):
    run = runs.read(run_folders.write(tmp_path / "run", epochs=1, evaluated=False))
    assert [s["label"] for s in charts.of([run])[0]["series"]] == ["training"]


def test_further_metrics_have_charts_of_their_own(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"step,loss,top_5\r\n1,0.5,0.9\r\n2,0.4,0.95\r\n")
    assert [chart["title"] for chart in charts.of([runs.read(tmp_path)])] == ["Loss", "Top 5"]


def test_a_run_without_rows_has_no_charts(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert charts.of([runs.read(tmp_path)]) == []


def test_clocks_turn_steps_into_seconds(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"step\r\n")
    (tmp_path / "timing.csv").write_bytes(b"step,seconds\r\n10,2.5\r\n20,1.5\r\n")
    (clock,) = charts.clocks([runs.read(tmp_path)])
    assert clock == {"steps_per_epoch": None, "steps": [10, 20], "seconds": [2.5, 4.0]}


def test_the_wait_for_input_is_a_share_of_the_step(tmp_path):
    text = "step,input_wait_seconds,step_seconds\r\n10,0.5,1.5\r\n20,0.0,0.0\r\n30,,2.0\r\n"
    (tmp_path / "timing.csv").write_bytes(text.encode())
    (tmp_path / "metrics.csv").write_bytes(b"step\r\n")
    (chart,) = charts.of([runs.read(tmp_path)])
    (series,) = chart["series"]
    # Keras's own fit hides the wait in the step: such a row says nothing.
    assert (series["x"], series["y"]) == ([10, 20], [25.0, 0.0])


def test_memory_of_each_gpu_and_of_the_host(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"step\r\n")
    names = ["host_memory_bytes", "gpu0_memory_bytes", "gpu0_peak_memory_bytes"]
    text = ",".join(["step", *names, "gpu1_memory_bytes"]) + "\r\n"
    text += f"10,{3 * 2**30},{2**30},{9 * 2**30},{2**29}\r\n"
    (tmp_path / "timing.csv").write_bytes(text.encode())
    run = runs.read(tmp_path)
    (chart,) = charts.of([run])
    assert [(series["label"], series["y"]) for series in chart["series"]] == [
        ("host", [3.0]),
        ("GPU 0", [1.0]),
        ("GPU 1", [0.5]),
    ]
    (compared,) = charts.of([run, run])
    assert [series["y"] for series in compared["series"]] == [[1.0], [1.0]]


def test_values_that_are_not_finite_are_gaps():
    assert charts.thinned(np.arange(4.0), np.array([1.0, np.nan, np.inf, 2.0])) == (
        [0, 1, 2, 3],
        [1.0, None, None, 2.0],
    )


def test_a_long_curve_keeps_its_ends_its_peaks_and_its_gaps():
    steps, values = np.arange(100_000.0), np.zeros(100_000)
    values[12_345], values[54_321], values[77_777] = 9.0, -9.0, np.nan
    x, y = charts.thinned(steps, values)
    assert len(x) <= 1600
    assert (x[0], x[-1]) == (0, 99_999)
    assert x == sorted(set(x))
    assert y[x.index(12_345)] == 9.0
    assert y[x.index(54_321)] == -9.0
    assert y[x.index(77_777)] is None


def test_a_curve_that_fits_is_whole():
    steps = np.arange(1600.0)
    assert charts.thinned(steps, steps)[0] == list(range(1600))
