"""The page as text: what it says, what it escapes, how large it is."""

import html.parser
import json
import re

import numpy as np
import pytest
import run_folders

from tfaccel import report
from tfaccel.errors import UserError
from tfaccel.report import page, runs

NEEDS_TENSORFLOW = False

NASTY = "<script>alert('x')</script>&\"</script><!--"


class Strict(html.parser.HTMLParser):
    """Text, elements and attributes; raises if elements are not nested well."""

    EMPTY = frozenset({"meta", "link", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_of(*folders):
    return page.html([runs.read(folder) for folder in folders])


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_what_one_run_answers_first(tmp_path):
    text = Strict(page_of(run_folders.write(tmp_path / "first", epochs=2))).text
    summary = text[: text.index("Curves")]
    for answer in (
        "first finished resnet9 on digits, 2 epochs (40 steps)",
        "30 Nov 2026, 17:18 · no GPU, 2 CPUs (AMD EPYC), 23.5 GiB memory, Linux x86_64",
        "Test accuracy",
        "loss 0.0312, 360 images",
        "40 steps, 2 epochs",
        "Images a second 1,234",
        "What was slow Start-up and test",
        "python -m tfaccel.train --config=quickstart",
    ):
        assert answer in summary


def test_what_stands_below(tmp_path):
    text = Strict(page_of(run_folders.write(tmp_path / "first", epochs=2))).text
    for section in (
        "Confusion",
        "Accuracy by class",
        "Most often confused",
        "Most confident mistakes",
        "What “auto” came to",
        "precision float32 (auto: no GPU)",
        "fields",
        "Hardware processor AMD EPYC",
        "Versions tfaccel 0.1.0",
        "uPlot 1.6.32, MIT licence",
    ):
        assert section in text


def test_nothing_is_fetched(tmp_path):
    parsed = Strict(page_of(run_folders.write(tmp_path / "run", epochs=1)))
    sources = [value for name, value in parsed.attributes if name in ("src", "href")]
    assert sources
    assert all(value.startswith("data:") for value in sources)


def test_the_licence_of_the_charts_is_kept(tmp_path):
    text = page_of(run_folders.write(tmp_path / "run", epochs=1))
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert "uPlot (v1.6.32)" in text


def test_names_and_values_are_escaped(tmp_path):
    folder = run_folders.write(
        tmp_path / "<script>alert('x')<" / "run",
        epochs=1,
        classes=3,
        config={"data.name": NASTY, "model.arguments": {NASTY: NASTY}, NASTY: NASTY},
    )
    arrays = dict(np.load(folder / "predictions.npz"))
    arrays["class_names"] = np.array([NASTY, f"b{NASTY}", "c"])
    np.savez(folder / "predictions.npz", **arrays)
    starts = json.loads((folder / "starts.json").read_text())
    starts["starts"][0] |= {"command": ["python", NASTY], "decided": [f"jit: {NASTY}"]}
    starts["starts"][0]["hardware"] = {"processor": NASTY, "gpus": [NASTY]}
    run_folders.write_json(folder / "starts.json", starts)
    metrics = (folder / "metrics.csv").read_text().replace("val_loss", "<b>top</b>", 1)
    (folder / "metrics.csv").write_text(metrics)
    plain = Strict(page_of(run_folders.write(tmp_path / "plain", epochs=1, classes=3)))
    for text in (page_of(folder), page_of(folder, tmp_path / "plain")):
        parsed = Strict(text)  # a script that got in would not be nested well, or be one more
        assert parsed.tags.count("script") == plain.tags.count("script") == 2
        assert NASTY in parsed.text
        assert "<script>alert" not in text
        assert "<b>top" not in text
        data_of(text)


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_was_killed(tmp_path, finished):
    folder = run_folders.write(tmp_path / "run", epochs=2, finished=finished)
    text = Strict(page_of(folder)).text
    assert ("not finished, step 40 of 40" in text) is not finished
    assert ("Go on with it" in text) is not finished
    assert (f"--workdir={folder}" in text) is not finished
    assert ("Validation accuracy" in text) is not finished
    assert ("Confusion" in text) is finished


def test_a_run_that_was_never_evaluated(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1, finished=False, evaluated=False)
    text = page_of(folder)
    assert "Training accuracy" in Strict(text).text
    assert [s["label"] for s in data_of(text)["charts"][0]["series"]] == ["training"]


def test_a_run_without_a_row(tmp_path):
    run_folders.write_json(tmp_path / "config.json", {"model.name": "resnet9"})
    text = page_of(tmp_path)
    assert data_of(text)["charts"] == []
    words = Strict(text).text
    assert "nothing was evaluated" in words
    assert "What was slow - not recorded" in words


def test_a_run_of_stock_fit(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"step,epoch,learning_rate,loss\r\n4,0,0.05,1.5\r\n")
    words = Strict(page_of(tmp_path)).text
    assert "no config recorded" in words
    assert "There is no config.json in this folder." in words


def test_losses_that_are_not_finite(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    lines = (folder / "metrics.csv").read_text().splitlines()
    cells = lines[2].split(",")
    lines[2] = ",".join([*cells[:3], "nan", "inf", *cells[5:]])
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    report = json.loads((folder / "report.json").read_text())
    report["final"] = {"loss": float("nan"), "accuracy": 0.1}
    run_folders.write_json(folder / "report.json", report)
    text = page_of(folder)
    words = Strict(text).text
    assert "loss was not finite in 1 row, first at step 10." in words
    assert "loss nan" in words
    # JSON has no NaN: the browser would refuse all of it.
    assert data_of(text)["charts"][0]["series"][0]["y"][1] is None
    json.loads(json.dumps(data_of(text), allow_nan=False))


@pytest.mark.parametrize("classes", [1, 12, 13, 1000])
def test_any_number_of_classes(tmp_path, classes):
    folder = run_folders.write(tmp_path / "run", epochs=1, classes=classes, images=2000)
    parsed = Strict(page_of(folder))
    assert ("A pixel a cell" in parsed.text) is (classes > 12)
    if classes == 1:
        assert "Not one of the 2000 test images was mistaken." in parsed.text
    assert f"the 24 worst of {classes}" in parsed.text or classes < 25


def test_runs_are_compared(tmp_path):
    first = run_folders.write(tmp_path / "first", epochs=2)
    second = run_folders.write(tmp_path / "second", epochs=2, config={"seed": 7}, seed=1)
    text = page_of(first, second)
    words = Strict(text).text
    assert "2 runs first, second" in words
    assert "What differs Field first second seed 0 7" in words
    assert "precision" not in words[: words.index("Curves")]
    assert "different datasets" not in words
    assert len(data_of(text)["clocks"]) == 2


def test_runs_that_are_the_same(tmp_path):
    first, second = (run_folders.write(tmp_path / name, epochs=1) for name in ("a", "b"))
    assert "Their configs are the same in every field." in Strict(page_of(first, second)).text


def test_runs_of_different_datasets_are_noted(tmp_path):
    first = run_folders.write(tmp_path / "a", epochs=1)
    second = run_folders.write(tmp_path / "b", epochs=1, config={"data.name": "cifar10"})
    third = run_folders.write(tmp_path / "c", epochs=1, finished=False)
    words = Strict(page_of(first, second, third)).text
    assert (
        "These runs are of different datasets (cifar10 and digits): their losses and "
        "accuracies do not compare." in words
    )
    assert "c: The run is not finished: 20 of 20 steps are recorded." in words


def test_a_long_run_of_large_images_stays_small(tmp_path):
    folder = run_folders.write(
        tmp_path / "run",
        epochs=200,
        steps_per_epoch=391,
        log_every=1,
        classes=1000,
        images=50_000,
        size=224,
    )
    assert report.build([folder]).stat().st_size < 1.5e6


def test_build_writes_beside_the_run_and_leaves_no_other_file(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    before = {path.name for path in folder.iterdir()}
    assert report.build([folder]) == folder / "report.html"
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}


def test_the_same_run_twice_is_one_run(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    assert report.build([folder, folder]) == folder / "report.html"


def test_a_page_that_cannot_be_written_is_refused(tmp_path):
    folder = run_folders.write(tmp_path / "run", epochs=1)
    with pytest.raises(UserError, match="which is a folder, expected a file"):
        report.build([folder], tmp_path)
    with pytest.raises(UserError, match="cannot be written: "):
        report.build([folder], tmp_path / "absent" / "page.html")
