import os

import pytest

from tfaccel.data import class_folders
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False


def make(folder, *paths):
    """Makes empty files, and folders for paths that end in /."""
    for path in paths:
        target = folder / path
        (target if path.endswith("/") else target.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            target.touch()
    return folder


@pytest.mark.parametrize(
    ("paths", "splits"),
    [
        (["cat/1.png", "dog/1.png"], {"all": "."}),
        (
            ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png"],
            {"train": "train", "test": "test"},
        ),
        (
            ["train/a/1.png", "train/b/1.png", "val/a/1.png"],
            {"train": "train", "validation": "val"},
        ),
        (
            ["Train/a/1.png", "Train/b/1.png", "valid/a/1.png", "Test/b/1.png"],
            {"train": "Train", "validation": "valid", "test": "Test"},
        ),
        (["train/a/1.png", "train/b/1.png", "notes/x.txt"], {"train": "train"}),
        (["cat/1.png", "dog/1.png", ".cache/1.png"], {"all": "."}),
    ],
)
def test_splits_are_found(tmp_path, paths, splits):
    found = class_folders.find(make(tmp_path, *paths))
    assert found == {split: tmp_path / name for split, name in splits.items()}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "holds no images, expected one folder for each class"),
        (["1.png", "2.JPG", "x.txt"], "holds 2 images but no folders"),
        (["cat/1.png"], r"holds one class \('cat'\), expected at least two"),
        (["train/cat/1.png", "test/cat/1.png"], r"train holds one class \('cat'\)"),
        (["train/", "test/cat/1.png"], "train holds no images"),
        (["train/1.png", "test/cat/1.png"], "train holds 1 images but no folders"),
        (["test/cat/1.png", "test/dog/1.png"], "holds test/ but no train/"),
        (
            ["pets/cat/1.png", "pets/dog/1.png"],
            r"only the folder 'pets'.*use --config.data.dir=.*pets\.",
        ),
        (["pets/train/cat/1.png", "pets/train/dog/1.png"], "only the folder 'pets'.*data.dir="),
        (
            ["cat/train/1.png", "cat/test/1.png", "dog/train/1.png"],
            "nested as class/split.*expected split/class",
        ),
        (
            ["cat/1.png", "Cat/2.png", "dog/1.png"],
            "folders 'Cat' and 'cat', two spellings of one class",
        ),
        (["cat/1.png", "cat /2.png"], "folders 'cat' and 'cat ', two spellings"),
        (
            ["train/cat/1.png", "train/dog/1.png", "test/Dog/1.png", "test/dog/2.png"],
            "test holds the class folders 'Dog' and 'dog'",
        ),
    ],
)
def test_a_tree_that_is_not_as_expected_is_refused_in_a_line(tmp_path, paths, message):
    with pytest.raises(UserError, match=message) as error:
        class_folders.find(make(tmp_path, *paths))
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(("name", "what"), [("absent", "not there"), ("file", "a file")])
def test_what_is_no_folder_is_refused(tmp_path, name, what):
    make(tmp_path, "file")
    with pytest.raises(UserError, match=f"data.dir=.*{name}, which is {what}, expected"):
        class_folders.find(tmp_path / name)


def test_images_are_listed_with_size_and_time_wherever_they_lie(tmp_path):
    make(tmp_path, "b/2.JPEG", "a/1.png", "a/deep/er/3.webp", "a/notes.txt", "a/.hidden.png")
    (tmp_path / "a/1.png").write_bytes(b"12345")
    os.utime(tmp_path / "a/1.png", ns=(7, 7))
    found, others = class_folders.images(tmp_path)
    assert [path for path, *_ in found] == ["a/1.png", "a/deep/er/3.webp", "b/2.JPEG"]
    assert found[0] == ("a/1.png", 5, 7)
    assert others == 1


def test_links_that_lead_in_a_circle_are_not_followed(tmp_path):
    make(tmp_path, "a/1.png")
    (tmp_path / "a/again").symlink_to(tmp_path)
    assert [path for path, *_ in class_folders.images(tmp_path)[0]] == ["a/1.png"]
