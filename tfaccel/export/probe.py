"""Runs exported files in their own runtime, in a process that knows no tfaccel.

Started with this file's text as `python -c TEXT TASK.json`. The task names the
runtime, the artefacts, the inputs, the threads, and where results go.
"""

import json
import os
import pathlib
import sys
import time

import numpy as np

BATCH = 32


def run(task):
    """Loads, runs and, if asked, times a task's artefacts; returns what was seen.

    Args:
        task: "runtime", "threads", "artefacts" {name: path}, "inputs" (an .npy
            file), "outputs" (a folder), "batches", and "seconds" to time each
            artefact at each batch size.

    Returns:
        {"errors": {name: text}, "seconds": {name: {batch: [seconds, ...]}}}.
    """
    images = np.load(task["inputs"])
    load = {"tensorflow": _tensorflow, "litert": _litert, "onnx": _onnx}[task["runtime"]]
    models, errors = {}, {}
    for name, path in task["artefacts"].items():
        try:
            model = load(path, task["threads"])
            parts = [model(images[i : i + BATCH]) for i in range(0, len(images), BATCH)]
            np.save(pathlib.Path(task["outputs"]) / f"{name}.npy", np.concatenate(parts))
            models[name] = model
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    seconds = {name: {} for name in models}
    for batch in task["batches"]:
        some = np.resize(images, (batch, *images.shape[1:]))
        for name, times in _timed(models, some, task["seconds"]).items():
            seconds[name][batch] = times
    return {"errors": errors, "seconds": seconds}


def _timed(models, images, seconds):
    """Times models in alternation, so that a busy moment meets them all."""
    times = {name: [] for name in models}
    for model in models.values():
        for _ in range(3):
            model(images)
    end = time.perf_counter() + seconds * len(models)
    while models and (time.perf_counter() < end or len(min(times.values(), key=len)) < 10):
        for name, model in models.items():
            start = time.perf_counter()
            model(images)
            times[name].append(time.perf_counter() - start)
    return times


def _tensorflow(path, threads):
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() != threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    if pathlib.Path(path).is_dir():
        loaded = tf.saved_model.load(path)
        return lambda images: loaded.serve(tf.constant(images)).numpy()
    import keras

    model = keras.models.load_model(path, compile=False)
    return lambda images: np.asarray(model.predict_on_batch(images))


def _litert(path, threads):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads)
    (inputs,), (outputs,) = interpreter.get_input_details(), interpreter.get_output_details()
    shape = [None]

    def call(images):
        if images.shape != shape[0]:
            interpreter.resize_tensor_input(inputs["index"], images.shape)
            interpreter.allocate_tensors()
            shape[0] = images.shape
        interpreter.set_tensor(inputs["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(outputs["index"])

    return call


def _onnx(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


if __name__ == "__main__":
    sys.modules["tfaccel"] = None  # Importing it is an error: a file must stand alone.
    os.environ.update(
        TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", KERAS_BACKEND="tensorflow"
    )
    task_file = pathlib.Path(sys.argv[1])
    answer = run(json.loads(task_file.read_text()))
    task_file.with_name("answer.json").write_text(json.dumps(answer))
