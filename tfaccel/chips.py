"""What GPUs could do at best, for model FLOPs utilisation (MFU)."""

from __future__ import annotations

# Dense peaks in 10^12 operations a second, without sparsity, of tensor cores: float16
# and bfloat16 with float32 sums; float32 as TensorFlow runs it, which is TF32 from
# compute capability 8.0 on. The first name found in the device's wins, so longer names
# stand first. Sources: NVIDIA's data sheets and architecture white papers of each chip
# (H100 and H200: "H100 Tensor Core GPU Architecture", H200 data sheet; A100: "A100
# Tensor Core GPU Architecture"; V100: "Tesla V100 GPU Architecture"; T4, A10, L4, L40S:
# data sheets; RTX 3090 and 4090: "Ampere GA102" and "Ada GPU Architecture").
_PEAKS = (
    ("H200", {"mixed_float16": 989.4, "mixed_bfloat16": 989.4, "float32": 494.7}),
    ("H100 PCIe", {"mixed_float16": 756.0, "mixed_bfloat16": 756.0, "float32": 378.0}),
    ("H100 NVL", {"mixed_float16": 835.0, "mixed_bfloat16": 835.0, "float32": 417.0}),
    ("H100", {"mixed_float16": 989.4, "mixed_bfloat16": 989.4, "float32": 494.7}),
    ("A100", {"mixed_float16": 312.0, "mixed_bfloat16": 312.0, "float32": 156.0}),
    ("A10G", {"mixed_float16": 70.0, "mixed_bfloat16": 70.0, "float32": 35.0}),
    ("A10", {"mixed_float16": 125.0, "mixed_bfloat16": 125.0, "float32": 62.5}),
    ("L40S", {"mixed_float16": 362.0, "mixed_bfloat16": 362.0, "float32": 183.0}),
    ("L4", {"mixed_float16": 121.0, "mixed_bfloat16": 121.0, "float32": 60.0}),
    ("RTX 4090", {"mixed_float16": 165.2, "mixed_bfloat16": 165.2, "float32": 82.6}),
    ("RTX 3090", {"mixed_float16": 71.0, "mixed_bfloat16": 71.0, "float32": 35.6}),
    ("V100", {"mixed_float16": 125.0, "float32": 15.7}),
    ("T4", {"mixed_float16": 65.0, "float32": 8.1}),
)


def peak_flops_per_second(device_name: str, policy: str) -> float | None:
    """Returns a chip's dense peak in operations a second, or None if it is not known.

    Args:
        device_name: As TensorFlow tells it, such as "NVIDIA A100-SXM4-80GB".
        policy: A dtype policy's name, such as "mixed_bfloat16".

    Example:
        >>> peak_flops_per_second("Tesla T4", "mixed_float16")
        65000000000000.0
    """
    words = device_name.replace("-", " ").split()
    for chip, peaks in _PEAKS:
        if all(word in words for word in chip.split()):
            return peaks[policy] * 1e12 if policy in peaks else None
    return None
