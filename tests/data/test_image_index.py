import os

import numpy as np
import pictures
import pytest

from tfaccel.data import class_folders, image_index
from tfaccel.data.image_index import BMP, JPEG, PILLOW, PNG, UNREADABLE

NEEDS_TENSORFLOW = False
pytestmark = pytest.mark.usefixtures("own_cache")

KINDS = {
    ".jpg": JPEG,
    ".jpeg": JPEG,
    ".png": PNG,
    ".gif": PILLOW,
    ".webp": PILLOW,
    ".tiff": PILLOW,
}


@pytest.mark.parametrize("form", pictures.FORMS)
def test_headers_tell_decoder_and_size(form, tmp_path):
    path = pictures.write(tmp_path / form, 20, 30, form=form)
    # TensorFlow takes the numbers of a palette for grey.
    kind = KINDS.get(path.suffix) or (BMP if form == "colour.bmp" else PILLOW)
    assert image_index.read_header(path) == (kind, 20, 30)


def test_content_decides_not_the_ending(tmp_path):
    path = pictures.write(tmp_path / "a.jpg", form="colour.png")
    assert image_index.read_header(path)[0] == PNG


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"no image at all", "cannot identify image file"),
        (None, "it is gone"),
    ],
)
def test_unreadable_files_are_marked_and_explained(content, reason, tmp_path):
    path = tmp_path / "a.png"
    if content is not None:
        path.write_bytes(content)
    assert image_index.read_header(path) == (UNREADABLE, 1, 1)
    assert image_index.why_unreadable(path) == reason


def test_a_damaged_body_is_explained(tmp_path):
    path = pictures.cut_short(pictures.write(tmp_path / "a.jpg"))
    assert image_index.read_header(path) == (JPEG, 40, 56)
    assert "truncated" in image_index.why_unreadable(path)


def build(folder):
    files, _ = class_folders.images(folder)
    return image_index.build(folder, files, np.zeros(len(files), np.int32))


@pytest.fixture
def opened(monkeypatch):
    """The names of the files whose headers are read."""
    names, read = [], image_index.read_header

    def note(path):
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(image_index, "read_header", note)
    return names


def test_the_second_time_no_file_is_opened(tmp_path, opened):
    folder = pictures.write_classes(tmp_path / "data", size=None)
    first = build(folder)
    assert len(opened) == 12
    opened.clear()
    second = build(folder)
    assert opened == []
    for name in ("paths", "kinds", "heights", "widths"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.path(0) == folder / "cat/0.png"
    assert first.heights[:3].tolist() == [24, 32, 40]


def test_new_changed_and_lost_files_are_noticed(tmp_path, opened):
    folder = pictures.write_classes(tmp_path / "data")
    build(folder)
    opened.clear()
    pictures.write(folder / "cat/10.png", 8, 8)
    pictures.write(folder / "dog/3.png", 9, 9)
    (folder / "dog/5.png").unlink()
    same_size = folder / "cat/2.png"
    os.utime(same_size, ns=(1, 1))
    index = build(folder)
    assert sorted(opened) == ["10.png", "2.png", "3.png"]
    sizes = {index.path(row).name: index.heights[row] for row in range(len(index))}
    assert (len(index), sizes["10.png"]) == (12, 8)
    assert index.heights[index.paths == b"dog/3.png"] == 9


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_damaged_cache_is_made_anew(tmp_path, content, opened):
    folder = pictures.write_classes(tmp_path / "data")
    build(folder)
    image_index.cache_file(folder).write_bytes(content)
    opened.clear()
    build(folder)
    assert len(opened) == 12
    opened.clear()
    build(folder)
    assert opened == []


def test_folders_of_one_name_have_caches_of_their_own(tmp_path):
    one, other = (image_index.cache_file(tmp_path / parent / "data") for parent in "ab")
    assert one != other
    assert one.name.startswith("data-")


def test_without_a_place_for_the_cache_there_is_a_warning(tmp_path, monkeypatch, log):
    folder = pictures.write_classes(tmp_path / "data")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(build(folder)) == 12
    (message,) = log.messages
    assert "index cannot be kept in" in message
