"""Writes the folder of a run without running one: what docs/results.md says is in it."""

import csv
import json

import numpy as np

from tfaccel import config as config_lib

DECIDED = [
    "devices: no GPU; 2 CPU(s)",
    "distribution: one device (1 CPU, auto)",
    "data: digits, 1294 training, 144 validation and 359 test images of 32x32x3, 10 classes",
    "jit: off (auto: not measured on this machine; try --config.jit=true)",
    "precision: float32 (auto: no GPU)",
]
HARDWARE = {
    "processor": "AMD EPYC",
    "cpus": 2,
    "memory_gib": 23.5,
    "system": "Linux x86_64",
    "gpus": [],
}
VERSIONS = {"tfaccel": "0.1.0", "python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1"}
PARTS = ("input_wait", "step", "evaluation", "checkpoint", "compile", "other")


def write(
    folder,
    *,
    epochs=8,
    steps_per_epoch=20,
    log_every=5,
    classes=10,
    images=360,
    size=8,
    seed=0,
    finished=True,
    evaluated=True,
    config=None,
):
    """Writes a run's folder; returns it.

    Args:
        folder: Where; made.
        epochs, steps_per_epoch, log_every: The run's length, and a row's.
        classes, images, size: Test images: how many classes and images, pixels a side.
        seed: Other numbers for another seed.
        finished: Whether the run came to its end.
        evaluated: Whether it kept validation images.
        config: Fields that are not the default.
    """
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    flat = config_lib.flat(config_lib.default()) | {"duration": f"{epochs}ep"} | (config or {})
    write_json(folder / "config.json", flat)
    start = {
        "time": "2026-11-30T17:18:05+0000",
        "command": ["python", "-m", "tfaccel.train", "--config=quickstart", "--workdir=runs/a"],
        "decided": DECIDED,
        "first_step": 0,
        "total_steps": epochs * steps_per_epoch,
        "steps_per_epoch": float(steps_per_epoch),
        "hardware": HARDWARE,
        "versions": VERSIONS,
    }
    write_json(folder / "starts.json", {"starts": [start]})
    metrics, timing = rows(random, epochs, steps_per_epoch, log_every, evaluated)
    write_csv(folder / "metrics.csv", metrics)
    write_csv(folder / "timing.csv", timing)
    if finished:
        arrays = predictions(random, classes, images, size)
        np.savez(folder / "predictions.npz", **arrays)
        accuracy = float(np.mean(arrays["labels"] == arrays["predictions"]))
        sums = {part: sum(row[f"{part}_seconds"] for row in timing) for part in PARTS}
        report = {
            "final": {"loss": 0.0312, "accuracy": accuracy},
            "throughput": {"images_per_second": 1234.5, "devices": 1, "mfu": None},
            "time": sums,
            "memory": {"host_bytes": 3 * 2**29, "gpu_peak_bytes": []},
            "steps": epochs * steps_per_epoch,
            "seconds": sum(sums.values()) + 12.0,
            "examples": {"train": 64 * steps_per_epoch, "validation": 144, "test": images},
            "hardware": HARDWARE,
            "versions": VERSIONS,
            "config": flat,
        }
        write_json(folder / "report.json", report)
    return folder


def rows(random, epochs, steps_per_epoch, log_every, evaluated):
    metrics, timing, total = [], [], epochs * steps_per_epoch
    for step in range(1, total + 1):
        at_end = step % steps_per_epoch == 0
        if step % log_every and not at_end:
            continue
        share = step / total
        loss = 2.3 * np.exp(-4 * share) * random.uniform(0.85, 1.15) + 0.02
        row = {
            "step": step,
            "epoch": (step - 1) // steps_per_epoch,
            "learning_rate": 0.1 * min(share / 0.3, (1 - share) / 0.7 + 1e-3),
            "accuracy": 1 - 0.9 * np.exp(-5 * share) * random.uniform(0.9, 1.1),
            "loss": loss,
        }
        if evaluated:
            row["val_accuracy"] = 1 - 0.85 * np.exp(-4 * share) if at_end else ""
            row["val_loss"] = loss * 1.1 if at_end else ""
        metrics.append(row)
        seconds = {
            "input_wait": 0.04 * random.uniform(0.5, 3),
            "step": 0.8 * random.uniform(0.9, 1.1),
            "evaluation": 0.3 if at_end and evaluated else 0.0,
            "checkpoint": 0.15 if at_end else 0.0,
            "compile": 9.0 if not timing else 0.0,
            "other": 0.02,
        }
        timing.append(
            {
                "step": step,
                "epoch": row["epoch"],
                "seconds": sum(seconds.values()),
                **{f"{part}_seconds": seconds[part] for part in PARTS},
                "images_per_second": 1200 * random.uniform(0.9, 1.1) if timing else "",
                "host_memory_bytes": int(2**30 * (1.2 + 0.2 * share)),
            }
        )
    return metrics, timing


def predictions(random, classes, images, size):
    labels = random.integers(0, classes, images)
    predicted = np.where(
        random.random(images) < 0.9, labels, random.integers(0, classes, images)
    )
    confusion = np.zeros((classes, classes), np.int32)
    np.add.at(confusion, (labels, predicted), 1)
    mistakes = np.flatnonzero(labels != predicted)[:32]
    return {
        "labels": labels.astype(np.int32),
        "predictions": predicted.astype(np.int32),
        "probabilities": random.uniform(0.6, 1.0, images).astype(np.float32),
        "confusion": confusion,
        "class_names": np.array([f"class {index}" for index in range(classes)]),
        "mistakes": mistakes.astype(np.int32),
        "mistake_images": random.integers(
            0, 256, (len(mistakes), size, size, 3), dtype=np.uint8
        ),
    }


def write_json(path, content):
    path.write_text(json.dumps(content))


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["step"])
        writer.writeheader()
        writer.writerows(rows)
