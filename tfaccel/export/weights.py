"""Reads weights back from exported files, to count their zeros."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Weight:
    """A kernel as a file holds it.

    Args:
        name: Its name in the file.
        values: float32 or int8, in the format's own layout.
        input_axis: The axis of input channels, along which NVIDIA's sparse
            tensor cores want two of four weights zero.
    """

    name: str
    values: np.ndarray
    input_axis: int

    @property
    def zeros(self) -> int:
        """How many weights are zero."""
        return int(np.sum(self.values == 0))


def read(path: str | Path) -> list[Weight]:
    """Returns the kernels (constants of two axes or more) that an artefact holds.

    Args:
        path: A .keras, .tflite or .onnx file, or a SavedModel's folder.

    Example:
        for weight in tfaccel.export.weights.read("runs/pruned/export/model.tflite"):
            print(weight.name, weight.zeros / weight.values.size, n_of_m(weight))
    """
    path = Path(path)
    readers = {".keras": _keras, ".tflite": _litert, ".onnx": _onnx, "": _savedmodel}
    found = readers[path.suffix](path)
    return [weight for weight in found if weight.values.ndim >= 2]


def n_of_m(weight: Weight, n: int = 2, m: int = 4) -> tuple[int, int]:
    """Returns (groups with at most n weights that are not zero, all groups).

    A group is m weights in a row along the input channels; channels that do not
    fill a last group make none.

    Args:
        weight: A kernel.
        n: Weights that may be other than zero.
        m: Weights in a group.
    """
    rows = np.moveaxis(weight.values, weight.input_axis, -1)
    whole = rows.shape[-1] // m * m
    groups = rows[..., :whole].reshape(-1, m)
    return int(np.sum(np.count_nonzero(groups, axis=1) <= n)), len(groups)


def summary(weights: list[Weight]) -> dict[str, Any]:
    """Returns zeros and size of all kernels together and of each."""
    zeros, count = sum(w.zeros for w in weights), sum(w.values.size for w in weights)
    return {
        "zeros": zeros,
        "weights": count,
        "share": round(zeros / count, 6) if count else 0.0,
        "tensors": [
            {"name": w.name, "shape": list(w.values.shape), "zeros": w.zeros} for w in weights
        ],
    }


def float_operations(path: Path) -> list[str]:
    """Returns the operations of a .tflite file that compute in float32, by kind.

    What converts from uint8 images, to int8 and back does not count.
    """
    schema, model = _flatbuffer(path)
    kinds = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    found = set()
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for operator in map(graph.Operators, range(graph.OperatorsLength())):
            code = model.OperatorCodes(operator.OpcodeIndex())
            kind = kinds[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
            outputs = [graph.Tensors(i).Type() for i in operator.OutputsAsNumpy()]
            if schema.TensorType.FLOAT32 in outputs:
                found.add(kind)
    return sorted(found - {"CAST", "DEQUANTIZE", "QUANTIZE"})


def _keras(path: Path) -> Iterator[Weight]:
    import h5py

    found = []
    with (
        zipfile.ZipFile(path) as archive,
        h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file,
    ):
        file.visititems(
            lambda name, item: (
                found.append(Weight(name, np.array(item), -2))
                if isinstance(item, h5py.Dataset) and item.ndim >= 2
                else None
            )
        )
    yield from found


def _savedmodel(path: Path) -> Iterator[Weight]:
    from tensorflow.train import load_checkpoint

    reader = load_checkpoint(str(path / "variables" / "variables"))
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        if len(shape) >= 2:
            yield Weight(name, reader.get_tensor(name), -2)


def _litert(path: Path) -> Iterator[Weight]:
    schema, model = _flatbuffer(path)
    dtypes = {schema.TensorType.FLOAT32: np.float32, schema.TensorType.INT8: np.int8}
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            data = model.Buffers(tensor.Buffer()).DataAsNumpy()
            # Without data a tensor is an activation, and the answer is 0.
            if isinstance(data, np.ndarray) and tensor.Type() in dtypes:
                values = data.view(dtypes[tensor.Type()]).reshape(tensor.ShapeAsNumpy())
                yield Weight(tensor.Name().decode(), values, -1)


def _flatbuffer(path: Path):
    from ai_edge_litert import schema_py_generated as schema

    return schema, schema.Model.GetRootAs(path.read_bytes(), 0)


def _onnx(path: Path) -> Iterator[Weight]:
    import onnx

    graph = onnx.load(path).graph
    axes = {}
    for node in graph.node:
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        for name in node.input:
            axes[name] = 1 if node.op_type == "Conv" or transposed else 0
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor)
            yield Weight(tensor.name, values, axes.get(tensor.name, 0))
