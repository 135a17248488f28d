import pickle
import pickletools

import numpy as np
import pytest

from tfaccel.data import cifar, sources
from tfaccel.errors import UserError

NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
TRAINING = [f"data_batch_{i}" for i in range(1, 6)]


def content(count, seed, classes=10):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return images, random.integers(0, classes, count)


def rows_of(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_python(folder, text=bytes, files=(*TRAINING, "test_batch")):
    """cifar-10-batches-py, with keys as Python 2 or 3 wrote them."""
    folder = folder / "cifar-10-batches-py"
    folder.mkdir()
    key = (lambda name: name.encode()) if text is bytes else str
    for seed, name in enumerate(files):
        images, labels = content(4, seed)
        batch = {key("data"): rows_of(images), key("labels"): labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {key("label_names"): [key(name) for name in NAMES]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return folder


def write_binary(folder):
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir()
    for seed, name in enumerate((*TRAINING, "test_batch")):
        images, labels = content(4, seed)
        rows = np.concatenate([labels[:, None].astype(np.uint8), rows_of(images)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder


def check(splits):
    parts = [content(4, seed) for seed in range(5)]
    for source, expected in ((splits.train, parts), (splits.test, [content(4, 5)])):
        np.testing.assert_array_equal(source.images, np.concatenate([x for x, _ in expected]))
        np.testing.assert_array_equal(source.labels, np.concatenate([y for _, y in expected]))
        assert source.class_names == NAMES


@pytest.mark.parametrize("inside", [True, False], ids=["the folder itself", "its parent"])
@pytest.mark.parametrize("text", [bytes, str])
def test_python_batches_are_read_exactly(tmp_path, text, inside):
    folder = write_python(tmp_path, text)
    dir = folder if inside else tmp_path
    check(sources.load(name="cifar10", dir=str(dir), validation_share=0.0))


def test_a_renamed_folder_of_batches_is_found(tmp_path):
    write_python(tmp_path).rename(tmp_path / "data")
    assert cifar.find("cifar10", str(tmp_path / "data")) == tmp_path / "data"


def test_binary_batches_are_read_exactly(tmp_path):
    write_binary(tmp_path)
    check(sources.load(name="cifar10", dir=str(tmp_path), validation_share=0.0))


def test_cifar100_has_fine_labels_in_both_forms(tmp_path):
    python, binary = tmp_path / "cifar-100-python", tmp_path / "cifar-100-binary"
    python.mkdir(), binary.mkdir()
    for seed, name in enumerate(("train", "test")):
        images, labels = content(6, seed, 100)
        batch = {b"data": rows_of(images), b"fine_labels": labels.tolist()}
        batch[b"coarse_labels"] = [0] * 6
        (python / name).write_bytes(pickle.dumps(batch, protocol=2))
        columns = [np.zeros((6, 1), np.uint8), labels[:, None].astype(np.uint8)]
        rows = np.concatenate([*columns, rows_of(images)], axis=1)
        (binary / f"{name}.bin").write_bytes(rows.tobytes())
    names = [f"class {i}".replace(" ", "_") for i in range(100)]
    meta = {b"fine_label_names": [name.encode() for name in names]}
    (python / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    (binary / "fine_label_names.txt").write_text("\n".join(names))
    for dir in (python, binary):
        splits = sources.load(name="cifar100", dir=str(dir), validation_share=0.0)
        for source, seed in ((splits.train, 0), (splits.test, 1)):
            np.testing.assert_array_equal(source.images, content(6, seed, 100)[0])
            np.testing.assert_array_equal(source.labels, content(6, seed, 100)[1])
            assert source.class_names == tuple(names)


def test_a_part_of_the_set_is_told(tmp_path, log):
    write_python(tmp_path)
    cifar.load("cifar10", str(tmp_path))
    assert any("found 20 train images" in m and "expected 50,000" in m for m in log.messages)


def refused(tmp_path, message):
    with pytest.raises(UserError, match=message) as error:
        sources.load(name="cifar10", dir=str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("lost", [*TRAINING, "test_batch"])
def test_a_missing_batch_is_named_with_what_was_found_and_expected(tmp_path, lost):
    (write_python(tmp_path) / lost).unlink()
    found = (
        "50,000 training images in 5" if lost == "test_batch" else "40,000 training images in 4"
    )
    refused(tmp_path, f"lacks {lost}: found {found} of 5 files, expected 50,000")


def test_a_file_cut_short_is_told_with_its_size(tmp_path):
    path = write_binary(tmp_path) / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    refused(tmp_path, "data_batch_3.bin has 12,291 bytes, expected a multiple of 3,073")
    path.write_bytes(b"")
    refused(tmp_path, "data_batch_3.bin has 0 bytes")


def test_a_pickle_cut_short_is_told_with_its_size(tmp_path):
    path = write_python(tmp_path) / "data_batch_2"
    path.write_bytes(path.read_bytes()[:1000])
    refused(tmp_path, r"data_batch_2 \(1,000 bytes\) cannot be read")


def test_rows_of_another_length_are_refused(tmp_path):
    path = write_python(tmp_path) / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": np.zeros((4, 100), np.uint8), b"labels": [0] * 4}))
    refused(tmp_path, r"data of shape \(4, 100\) and 4 labels, expected as many rows of 3072")


class Harmful:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    path = write_python(tmp_path) / "data_batch_1"
    harmful = pickle.dumps(Harmful())
    assert "print" in [argument for _, argument, _ in pickletools.genops(harmful)]
    path.write_bytes(harmful)
    refused(tmp_path, "cannot be read: it wants builtins.print")
    assert "must not run" not in capsys.readouterr().out


def test_a_folder_without_batches_is_for_tfds(tmp_path):
    assert cifar.find("cifar10", str(tmp_path)) is None
    assert cifar.find("mnist", str(write_python(tmp_path))) is None
    assert cifar.find("cifar10", None) is None
