"""Each format is written, run in its own runtime, and compared; or nothing is left."""

import json
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

from tests import tiny
from tfaccel import export as export_lib
from tfaccel.errors import UserError
from tfaccel.export import artefact, exporter, formats, weights
from tfaccel.export.normalization import Normalization

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
UNIT = Normalization((1 / 255,) * 3, (-0.5, -0.5, -0.4))
CLASSES = ("ant", "bee", "cat", "dog")


def two_of_four(kernel):
    """Zeros the two smallest of every four weights along the input channels."""
    rows = np.moveaxis(kernel.numpy(), -2, -1)
    groups = rows.reshape(-1, 4).copy()
    order = np.argsort(np.abs(groups), axis=1)
    np.put_along_axis(groups, order[:, :2], 0.0, axis=1)
    return np.moveaxis(groups.reshape(rows.shape), -1, -2)


def pruned_model(policy):
    """A net whose second kernel, of 4 x 8 input channels, is 2:4 sparse."""
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(policy)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, use_bias=False)(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Conv2D(4, 3, strides=2, name="sparse")(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dense(4, dtype="float32")(keras.layers.Flatten()(x))
    model = keras.Model(inputs, x, name="pruned")
    for variable in model.weights:
        if "batch_normalization" in variable.path:
            variable.assign(RANDOM.uniform(0.5, 2.0, variable.shape))
    kernel = model.get_layer("sparse").kernel
    kernel.assign(two_of_four(kernel))
    return model


def export(model, folder, **options):
    options = {"samples": IMAGES, "normalization": UNIT, "threads": (), **options}
    return export_lib.export(model, folder, **options)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Everything at once: trained in bfloat16, pruned, saved, loaded, all formats."""
    folder = tmp_path_factory.mktemp("exported")
    pruned_model("mixed_bfloat16").save(folder / "trained.keras")
    keras.config.set_dtype_policy("float32")
    model = keras.models.load_model(folder / "trained.keras")
    report = export(
        model,
        folder / "export",
        formats=tuple(formats.FORMATS),
        calibration=IMAGES,
        class_names=CLASSES,
        int8_points=5.0,
    )
    return folder / "export", report


def test_all_formats_are_there_and_nothing_else(exported):
    folder, report = exported
    names = {form.file for form in formats.FORMATS.values()}
    others = {"export.json", "export_metadata.json", "accuracy_size.svg"}
    assert {path.name for path in folder.iterdir()} == names | others
    assert json.loads((folder / "export.json").read_text()) == report
    assert report["batch_norm"] == {"folded": 2, "kept": 0}
    assert (report["images"], report["labelled"], report["accuracy"]) == (40, False, 1.0)


@pytest.mark.parametrize("name", ["keras", "savedmodel", "litert", "onnx"])
def test_float_formats_give_the_outputs_of_the_model(exported, name):
    entry = exported[1]["artefacts"][name]
    assert entry["largest_difference"] < 1e-4
    assert entry["predictions_changed"] == 0
    assert entry["accuracy"] == 1.0


# The first kernel has 216 weights, the second 288, the Dense 64: half of 288 are zero.
@pytest.mark.parametrize("name", ["keras", "savedmodel", "litert", "onnx"])
def test_zeros_are_counted_in_the_file_itself(exported, name):
    sparsity = exported[1]["artefacts"][name]["sparsity"]
    assert (sparsity["zeros"], sparsity["weights"]) == (144, 568)
    assert sorted(t["zeros"] for t in sparsity["tensors"]) == [0, 0, 144]


@pytest.mark.parametrize("name", ["keras", "savedmodel", "litert", "litert_int8", "onnx"])
def test_two_of_four_is_seen_group_by_group_in_the_file(exported, name):
    kernels = weights.read(exported[0] / formats.FORMATS[name].file)
    sparse = next(kernel for kernel in kernels if kernel.values.size == 288)
    assert weights.n_of_m(sparse) == (72, 72)


def test_int8_is_int8_and_takes_and_gives_float32(exported):
    from ai_edge_litert.interpreter import Interpreter

    folder, report = exported
    entry = report["artefacts"]["litert_int8"]
    assert entry["float_operations"] == []
    kernels = weights.read(folder / "model_int8.tflite")
    assert {str(kernel.values.dtype) for kernel in kernels} == {"int8"}
    interpreter = Interpreter(str(folder / "model_int8.tflite"))
    ends = interpreter.get_input_details() + interpreter.get_output_details()
    assert [end["dtype"] for end in ends] == [np.float32, np.float32]


def test_litert_has_built_in_operations_only(exported):
    from ai_edge_litert import schema_py_generated as schema

    content = (exported[0] / "model.tflite").read_bytes()
    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    assert [code.CustomCode() for code in codes] == [None] * len(codes)


def test_class_names_are_in_every_artefact(exported):
    import onnx

    folder, _ = exported
    expected = json.loads((folder / "export_metadata.json").read_text())
    assert expected["class_names"] == list(CLASSES)
    assert expected["output"] == "logits"
    normalization = {"scale": [1 / 255] * 3, "offset": [-0.5, -0.5, -0.4]}
    assert expected["input"] == {
        "shape": [8, 8, 3],
        "dtype": "float32",
        "normalization": {**normalization, "in_the_model": False},
    }
    for name in ("model.keras", "model.tflite", "model_int8.tflite"):
        with zipfile.ZipFile(folder / name) as archive:
            assert json.loads(archive.read("export_metadata.json")) == expected
    with zipfile.ZipFile(folder / "model.tflite") as archive:
        assert archive.read("labels.txt").decode().split() == list(CLASSES)
    extra = folder / "savedmodel" / "assets.extra" / "export_metadata.json"
    assert json.loads(extra.read_text()) == expected
    entries = {e.key: e.value for e in onnx.load(folder / "model.onnx").metadata_props}
    assert json.loads(entries["class_names"]) == list(CLASSES)


def test_savedmodel_holds_each_weight_once(exported):
    folder, report = exported
    kernels = report["artefacts"]["savedmodel"]["sparsity"]["tensors"]
    assert len(kernels) == 3
    size = (folder / "savedmodel/variables/variables.data-00000-of-00001").stat().st_size
    assert size < 2 * 4 * 568 + 2000


def test_the_picture_shows_every_format(exported):
    picture = (exported[0] / "accuracy_size.svg").read_text()
    for name, entry in exported[1]["artefacts"].items():
        assert f">{name}, {entry['bytes'] / 1024:,.0f} KiB, " in picture


@pytest.mark.parametrize(
    ("policy", "included"),
    [("float32", True), ("mixed_bfloat16", False), ("mixed_float16", True)],
)
def test_every_precision_becomes_float32(tmp_path, policy, included):
    model = tiny.model(norm=keras.layers.BatchNormalization(dtype=policy), policy=policy)
    report = export(
        model,
        tmp_path,
        formats=("litert", "litert_int8", "onnx"),
        calibration=IMAGES,
        include_preprocessing=included,
        int8_points=10.0,
    )
    for name in ("litert", "onnx"):
        assert report["artefacts"][name]["largest_difference"] < 1e-4
    assert report["input"]["dtype"] == ("uint8" if included else "float32")
    assert report["artefacts"]["litert_int8"]["accuracy"] >= 0.9
    # The model that came in is as it was.
    assert model.compiled
    assert model.layers[1].compute_dtype == keras.DTypePolicy(policy).compute_dtype


def test_a_model_takes_its_own_input_where_no_normalisation_is_given(tmp_path):
    samples = RANDOM.normal(size=(8, 8, 8, 3)).astype(np.float32)
    labels = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    report = export_lib.export(
        tiny.model(), tmp_path, formats=["onnx"], samples=samples, labels=labels, threads=(1,)
    )
    entry = report["artefacts"]["onnx"]
    assert report["labelled"]
    assert entry["accuracy"] == report["accuracy"]
    assert [(t["batch"], t["threads"]) for t in entry["latency"]] == [(1, 1), (32, 1)]
    for timing in entry["latency"]:
        assert timing["runs"] >= 10
        assert 0 < timing["median_ms"] <= timing["p95_ms"]


def test_another_export_replaces_the_earlier_one_and_nothing_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    export(tiny.model(), tmp_path, formats=["onnx"])
    report = export(tiny.model(seed=2), tmp_path, formats=["litert"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "accuracy_size.svg",
        "export.json",
        "export_metadata.json",
        "model.tflite",
        "notes.txt",
    ]
    assert list(report["artefacts"]) == ["litert"]


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(UserError, match=r"model\.onnx exists and is no export of tfaccel"):
        export(tiny.model(), tmp_path, formats=["onnx"])
    assert (tmp_path / "model.onnx").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@keras.saving.register_keras_serializable("test_exporter")
class Cholesky(keras.layers.Layer):
    def call(self, x):
        square = x[..., None] @ x[..., None, :] + keras.ops.eye(x.shape[-1])
        return keras.ops.cholesky(square)[..., 0]


def with_cholesky():
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Dense(4, name="small")(keras.layers.Flatten()(inputs))
    return keras.Model(inputs, keras.layers.Dense(4)(Cholesky(name="root")(x)))


@pytest.mark.parametrize("name", ["litert", "litert_int8", "onnx"])
def test_an_operation_that_a_format_lacks_is_named_with_its_layer(tmp_path, name):
    with pytest.raises(UserError) as error:
        export(with_cholesky(), tmp_path / "new", formats=[name], calibration=IMAGES)
    message = str(error.value)
    assert message.startswith(f"{name}: layer 'root' uses Cholesky, which")
    assert "The converter says: " in message
    assert "\n" not in message
    assert not (tmp_path / "new").exists()


def test_a_file_that_needs_code_of_its_own_is_no_export(tmp_path):
    with pytest.raises(UserError) as error:
        export(with_cholesky(), tmp_path / "new", formats=["keras"])
    assert str(error.value) == (
        f"keras: layer 'root' is a Cholesky of {__name__}, and a .keras file does not hold its "
        "code: leave keras out, the other formats do."
    )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": ["onxx"]}, r"received the format 'onxx', which .* Did you mean onnx\?"),
        ({"formats": []}, "received no formats, expected some of keras, savedmodel, litert"),
        ({"formats": ["litert_int8"]}, "'litert_int8' without calibration images"),
        ({"samples": IMAGES / 255}, "samples of dtype float64 .* expected uint8"),
        ({"samples": IMAGES[:, :4]}, r"samples of shape \(40, 4, 8, 3\), expected \(None, 8"),
        ({"labels": np.zeros(3, int)}, r"labels of shape \(3,\) for 40 samples"),
        ({"class_names": ("a", "b")}, "2 class names for a model of 4 classes"),
        (
            {
                "normalization": None,
                "include_preprocessing": True,
                "samples": np.float32(IMAGES),
            },
            "include_preprocessing=True without a normalization",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, options, message):
    with pytest.raises(UserError, match=message) as error:
        export(tiny.model(), tmp_path / "new", **{"formats": ["onnx"], **options})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(
        formats.importlib.util, "find_spec", lambda name: None if name == "tf2onnx" else name
    )
    with pytest.raises(UserError) as error:
        formats.check(("keras", "onnx"))
    assert str(error.value) == (
        "received the format 'onnx', which needs tf2onnx: pip install 'tfaccel[export]'."
    )


def test_weights_that_are_not_finite_are_refused(tmp_path):
    model = tiny.model()
    model.layers[-1].bias.assign([np.nan, 0, 0, 0])
    with pytest.raises(UserError, match="outputs are not finite"):
        export(model, tmp_path / "new", formats=["onnx"])


REFERENCE = np.float32([[1.0, 2.0, 0.0], [3.0, 1.0, 3.00005]])


def test_a_difference_below_1e_4_passes():
    found = artefact.compare("litert", REFERENCE + np.float32(5e-5), REFERENCE)
    assert found["largest_difference"] == pytest.approx(5e-5, rel=0.1)
    assert found["predictions_changed"] == 0


def test_predictions_may_change_where_the_top_two_are_closer_than_1e_4():
    outputs = REFERENCE + np.float32([[0, 0, 0], [8e-5, 0, 0]])
    assert artefact.compare("onnx", outputs, REFERENCE)["predictions_changed"] == 1


@pytest.mark.parametrize(
    ("name", "change"),
    [("onnx", 2e-4), ("keras", 1.5), ("litert", np.nan)],
)
def test_a_larger_difference_fails(name, change):
    outputs = REFERENCE + np.float32([[change, 0, 0], [0, 0, 0]])
    with pytest.raises(UserError, match=rf"^{name}: outputs differ .* nothing was exported"):
        artefact.compare(name, outputs, REFERENCE)


@pytest.mark.parametrize(
    ("accuracy", "count", "points", "passes"),
    [
        (0.89, 1000, 1.0, True),
        (0.889, 1000, 1.0, False),
        (0.889, 1000, 2.0, True),
        (0.88, 50, 1.0, True),  # One image of 50 is 2 points, and always may.
        (0.86, 50, 1.0, False),
    ],
)
def test_int8_may_lose_a_point_or_one_image(accuracy, count, points, passes):
    if passes:
        artefact.check_int8(accuracy, 0.9, count, points)
    else:
        with pytest.raises(UserError, match="points lost, allowed are"):
            artefact.check_int8(accuracy, 0.9, count, points)


def test_the_probe_knows_no_tfaccel():
    # The probe's text runs where importing tfaccel is an error.
    text = artefact._PROBE.read_text()
    assert 'sys.modules["tfaccel"] = None' in text
    code = 'import sys\nsys.modules["tfaccel"] = None\nimport tfaccel'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 1


def test_an_export_that_was_stopped_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter.artefact, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(tiny.model(), tmp_path / "new", formats=["onnx"])
    assert not (tmp_path / "new").exists()
