"""What the table and the picture say of an export."""

import itertools
import xml.etree.ElementTree as ElementTree

import pytest

from tfaccel.export import picture, table

NEEDS_TENSORFLOW = False


def entry(file, size, accuracy, median=2.0, share=0.0):
    timing = {"batch": 1, "threads": 2, "median_ms": median, "p95_ms": 3.0, "runs": 10}
    return {
        "file": file,
        "bytes": size,
        "gzip_bytes": size // 2,
        "accuracy": accuracy,
        "largest_difference": 1e-6,
        "sparsity": {"share": share},
        "latency": [timing],
    }


def report(share=0.0):
    return {
        "images": 512,
        "labelled": True,
        "accuracy": 0.99,
        "batch_norm": {"folded": 8, "kept": 1},
        "artefacts": {
            "litert": entry("float.tflite", 4096, 0.99, median=2.0, share=share),
            "litert_int8": {
                **entry("small.tflite", 1024, 0.985, median=0.5, share=share),
                "float_operations": ["SOFTMAX"],
            },
        },
    }


def test_the_table():
    assert table.draw(report()).splitlines() == [
        "format       file          KiB  gzip KiB  accuracy  differs by  zeros  ms b1 t2",
        "litert       float.tflite  4.0  2.0       99.00 %   1.0e-06     0.0 %  2.00 (3.00)",
        "litert_int8  small.tflite  1.0  0.5       98.50 %   1.0e-06     0.0 %  0.50 (3.00)",
        "",
        "accuracy: on 512 images; the float32 model itself has 99.00 % (labels of the data).",
        "BatchNormalization: 8 folded, 1 kept.",
        "ms: median (95th percentile) of a call; b = batch, t = CPU threads.",
        "litert_int8 against litert: 4.00 x (b1 t2).",
        "litert_int8 computes in float32 still: SOFTMAX.",
    ]


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_zeros_are_said_to_make_nothing_faster(share):
    assert table.draw(report(share)).splitlines()[-1] == (
        f"zeros: {100 * share:.1f} % of the weights. They make files smaller after gzip; none "
        "of these runtimes skips them, so none is faster for them."
    )


def test_two_exports_are_compared_by_format():
    dense, pruned = report(), report(0.8)
    for pruned_entry in pruned["artefacts"].values():
        pruned_entry["gzip_bytes"] //= 2
        pruned_entry["accuracy"] -= 0.005
    del dense["artefacts"]["litert_int8"]
    assert table.ratios(pruned, dense) == (
        "litert: 1.00 of the bytes, 0.50 after gzip, -0.50 points of accuracy"
    )


def places(svg):
    """The texts of a picture with where they begin, and its circles."""
    root = ElementTree.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    texts = {t.text: (float(t.get("x")), float(t.get("y"))) for t in root.iter(f"{name}text")}
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{name}circle")]
    return texts, circles


def test_the_picture_puts_size_across_and_accuracy_up():
    _, circles = places(picture.draw(report()["artefacts"]))
    # After the two of the legend: gzip and raw of the smaller file, then of the larger.
    small_gzip, small, large_gzip, large = circles[2:]
    assert small_gzip[0] < small[0] < large_gzip[0] < large[0]
    assert small[1] == small_gzip[1] > large[1] == large_gzip[1]


def test_labels_of_one_place_do_not_lie_on_each_other():
    same = {name: entry("f", 4096, 0.99) for name in ("keras", "litert", "onnx")}
    texts, _ = places(picture.draw(same))
    heights = sorted(y for text, (_, y) in texts.items() if "4 KiB, 99.00" in text)
    assert len(heights) == 3
    assert all(b - a >= 15 for a, b in itertools.pairwise(heights))
