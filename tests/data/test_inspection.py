"""python -m tfaccel.data: what it finds, draws and refuses."""

import re
import shutil

import numpy as np
import pictures
import pytest
import tiny
from PIL import Image

from tfaccel import cli
from tfaccel.data import inspection, pipeline, sources
from tfaccel.data.__main__ import run

pytestmark = pytest.mark.usefixtures("own_cache")


def inspect(capsys, *arguments):
    """Runs the command; returns (status, standard output, standard error)."""
    status = cli.main(run, ["data", *map(str, arguments)])
    captured = capsys.readouterr()
    # In a test TensorFlow has started before the command could set devices up.
    lines = captured.err.splitlines(keepends=True)
    errors = [line for line in lines if not line.startswith("warning: devices cannot be set")]
    return status, captured.out, "".join(errors)


def folder_flags(folder, *further):
    return (
        "--config.data.name=folder",
        f"--config.data.dir={folder}",
        "--config.data.image_size=16",
        "--config.global_batch_size=4",
        *further,
    )


@pytest.fixture
def folder(tmp_path):
    """Two classes with two copies, one of them in another class and split, and two faults."""
    folder = tmp_path / "pets"
    pictures.write_classes(folder / "train", size=None, count=5, ending=".jpg")
    pictures.write_classes(folder / "test", count=2)
    shutil.copy(folder / "train/cat/0.jpg", folder / "train/cat/same.jpg")
    shutil.copy(folder / "train/cat/1.jpg", folder / "test/dog/leak.jpg")
    pictures.cut_short(folder / "train/dog/3.jpg")
    (folder / "train/dog/empty.png").touch()
    return folder


def test_a_folder_is_described(folder, tmp_path, capsys):
    out = tmp_path / "grid.png"
    flags = folder_flags(folder, "--show=5", f"--out={out}", "--seconds=0.01")
    status, text, warnings = inspect(capsys, *flags)
    assert status == 0
    for line in (
        "sizes: 24x30 to 40x42, half of them up to 32x36 (height x width); 16x16x3 as fetched",
        "test: 5 examples; classes: 2: dog 3, cat 2",
        "duplicates: 2",
        "  1 of them under two labels",
        "  1 of them in two splits",
        f"  {folder}/train/cat/0.jpg = {folder}/train/cat/same.jpg",
        "unreadable: 2 of 17 files",
        f"  {folder}/train/dog/empty.png (it is empty)",
        f"drawn: 5 training examples in {out}",
    ):
        assert line in text.splitlines()
    (leak,) = (line for line in text.splitlines() if "leak.jpg" in line)
    assert f"{folder}/train/cat/1.jpg" in leak
    assert f"  {folder}/train/dog/3.jpg (" in text
    stages = re.findall(r"^(.+?) +([\d,]+) images/s$", text, re.M)
    names = ["read", "+ decode, cut and batch", "+ augment", "+ mix and normalise"]
    assert [name for name, _ in stages] == names
    assert all(int(speed.replace(",", "")) > 0 for _, speed in stages)
    assert warnings.count("empty.png cannot be read") == 1
    assert Image.open(out).size[0] > 3 * 16


def test_images_in_memory_are_described(capsys):
    flags = ("--config.data.name=synthetic", "--config.data.num_examples=60", "--seconds=0")
    status, text, warnings = inspect(capsys, *flags)
    assert (status, warnings) == (0, "")
    assert "sizes: 32x32x3 as fetched" in text
    assert re.search(r"train: 43 examples; classes: 10: \d \d, ", text)
    assert "duplicates: none" in text
    assert "images/s" not in text


def test_without_a_scan_nothing_is_read_twice(folder, capsys):
    flags = folder_flags(folder, "--noscan", "--seconds=0", "--config.data.on_bad_image=skip")
    status, text, _ = inspect(capsys, *flags)
    assert status == 0
    assert "duplicates" not in text
    assert "unreadable" not in text


def test_the_picture_shows_the_training_examples_with_their_labels(tmp_path):
    data = pipeline.TrainingData(tiny.source(), 0, 8, normalize=tiny.unit)
    picture = np.asarray(inspection.grid(data, 3))
    images, labels = next(
        pipeline.TrainingData(tiny.source(), 0, 3).dataset().as_numpy_iterator()
    )
    # Eight pixels are drawn 14 times as large, three in a square of two by two.
    assert picture.shape == (2 * (112 + 22), 2 * (112 + 6), 3)
    for place, image in enumerate(images):
        top, left = place // 2 * 134 + 3, place % 2 * 118 + 3
        drawn = picture[top : top + 112, left : left + 112]
        np.testing.assert_array_equal(drawn[::14, ::14], image)
        below = picture[top + 112 : top + 131, left : left + 112]
        assert (below < 128).any()  # the label
    assert (picture[134 + 3 :, 118 + 3 :] == 255).all()
    assert len(labels) == 3


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (2, "newt"),
        ([0.0, 1.0, 0.0], "dog"),
        ([0.7, 0.3, 0.0], "70% cat, 30% dog"),
        ([0.1, 0.1, 0.8], "newt"),  # smoothed
    ],
)
def test_labels_in_words(label, text):
    label = np.int32(label) if np.ndim(label) == 0 else np.float32(label)
    assert inspection.label_text(label, ("cat", "dog", "newt")) == text


def test_many_classes_are_told_by_the_largest_and_smallest():
    labels = np.repeat(np.arange(30), np.arange(1, 31))
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    text = inspection.classes(sources.from_arrays(images, labels))
    assert text == (
        "classes: 30: 29 30, 28 29, 27 28, 26 27, 25 26, ..., 4 5, 3 4, 2 3, 1 2, 0 1"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--show=4", "--out=grid.gif"], "--out=grid.gif, expected a file that ends in .png"),
        (["--show=4", "--out=absent/grid.png"], "there is no folder absent"),
        (["--show=-1"], "negative --show"),
        (["--shw=4"], "unknown flag --shw. Did you mean --show"),
        (["--config.data.name=folder"], "data.name=folder without data.dir"),
        (["--config=quickstrat"], "there is no such file. Did you mean quickstart"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, _, error = inspect(capsys, *arguments)
    assert status == 2
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
