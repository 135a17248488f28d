"""Real workers, each a process of its own: they meet, reduce, and end when one is lost."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tfaccel
from tfaccel import cluster, distribution, multiworker
from tfaccel.errors import UserError
from tfaccel.launch import environment

CHECKOUT = str(Path(tfaccel.__file__).parents[1])
WORKER = """
import os, signal, sys
from tfaccel import cli, cluster, distribution, log, multiworker
log.to_terminal()
cli.start_tensorflow()
import tensorflow as tf

index = cluster.discover().index


def sums(strategy, values):
    @tf.function
    def run():
        def replica():
            own = [float(value) * (index + 1) for value in values]
            context = tf.distribute.get_replica_context()
            options = distribution.communication_options(strategy)
            return context.all_reduce("sum", [tf.identity(v) for v in own], options=options)

        return strategy.run(replica)

    results = [strategy.experimental_local_results(result)[-1] for result in run()]
    return [float(result) for result in results]
"""


def worker_script(tmp_path, body):
    path = tmp_path / "worker.py"
    path.write_text(WORKER + textwrap.dedent(body))
    return path


def start_worker(path, workers, index):
    variables = {"TF_CONFIG": cluster.tf_config(workers, index), "PYTHONPATH": CHECKOUT}
    return subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, **variables, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def local_addresses(count):
    return environment.addresses([], count, 0)


def test_workers_of_the_launcher_reduce(fresh_python, tmp_path):
    # Two packs, by a ring; every worker comes to the same sums. auto finds the workers.
    path = worker_script(
        tmp_path,
        """
        strategy = distribution.build(communication="ring", bytes_per_pack=4, timeout=600)
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        print(several, strategy.num_replicas_in_sync, *distribution.worker(strategy))
        print("sums", sums(strategy, [1, 10, 100]))
        """,
    )
    done = fresh_python("-m", "tfaccel.launch", "--workers=2", "--", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for index in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{index}] ")]
        told = [line.partition(" ")[2] for line in lines]
        assert told[0].startswith("cluster: 2 worker(s) from tfaccel.launch: 127.0.0.1:")
        assert f"; this is worker {index}" in told[0]
        assert told[1:] == [
            "cluster: all 2 workers are there",
            "distribution: 2 workers x 1 CPU, communication ring, auto",
            f"True 2 {index} 2",
            "sums [3.0, 30.0, 300.0]",
        ]


def test_sigterm_ends_a_worker(fresh_python, tmp_path):
    # TensorFlow's strategy would take it for itself.
    path = worker_script(
        tmp_path,
        """
        import time
        strategy = distribution.build(strategy="multiworker", timeout=600)
        assert sums(strategy, [1.0]) == [1.0]
        print("built", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        """,
    )
    done = fresh_python(path, cwd=tmp_path, TF_CONFIG=cluster.tf_config(local_addresses(1), 0))
    assert done.stdout.splitlines()[-1] == "built"
    assert done.returncode == -signal.SIGTERM


def test_a_worker_that_never_comes_ends_the_others(fresh_python, tmp_path):
    workers = local_addresses(2)
    path = worker_script(
        tmp_path,
        """
        build = distribution.build
        sys.exit(cli.main(lambda _: build(strategy="multiworker", timeout=3) and 0))
        """,
    )
    done = fresh_python(path, cwd=tmp_path, TF_CONFIG=cluster.tf_config(workers, 0))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: worker 0 waited 3 s for 1 of 2 workers in vain: worker 1, {workers[1]} "
        "(connection refused). Look at its own output, let its port through the firewall, or "
        "wait longer: distribution.timeout."
    )


def test_workers_with_several_logical_cpus(fresh_python, tmp_path):
    # What workers with several GPUs do, as far as CPUs can show it.
    path = worker_script(
        tmp_path,
        """
        strategy = distribution.build(strategy="multiworker", logical_cpus=2, timeout=600)
        print("sums", [sums(strategy, [1, 10])[i] for i in range(2)])
        inputs = strategy.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.range(context.input_pipeline_id * 10, 100).batch(2)
        )
        first = strategy.experimental_local_results(next(iter(inputs)))
        print("inputs", [value.numpy().tolist() for value in first])
        """,
    )
    done = fresh_python("-m", "tfaccel.launch", "--workers=2", "--", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for index in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{index}] ")]
        assert [line.partition(" ")[2] for line in lines][2:] == [
            "distribution: 2 workers x 2 CPU, communication auto, as asked",
            # Of worker 0 twice 1, of worker 1 twice 2.
            "sums [6.0, 60.0]",
            f"inputs [[{10 * index}, {10 * index + 1}], [{10 * index + 2}, {10 * index + 3}]]",
        ]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_killed_ends_the_others(tmp_path, lost):
    path = worker_script(
        tmp_path,
        f"""
        multiworker._HEARTBEAT_SECONDS = 10
        strategy = distribution.build(timeout=600)
        print("sums", sums(strategy, [1]), flush=True)
        if index == {lost}:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            sums(strategy, [1])
        """,
    )
    workers = local_addresses(2)
    processes = [start_worker(path, workers, index) for index in range(2)]
    outputs = [process.communicate(timeout=900)[0] for process in processes]
    assert processes[lost].returncode == -9
    # An exception of TensorFlow's, or its abort where the leader is lost.
    assert processes[1 - lost].returncode not in (0, None)
    assert all("sums [3.0]" in output for output in outputs), outputs


def test_a_worker_needs_tensorflow_not_to_have_started():
    # The tests' own TensorFlow has.
    with pytest.raises(UserError) as error:
        multiworker.check_order()
    assert str(error.value) == (
        "TensorFlow has already started, and can join no other worker any more: build the "
        "strategy before any operation, model or dataset is created; in a notebook, restart "
        "the kernel and run tfaccel.devices.configure() and tfaccel.distribution.build() "
        "first."
    )


def test_the_order_is_checked_before_anybody_is_waited_for(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster.tf_config(local_addresses(2), 0))
    with pytest.raises(UserError, match="TensorFlow has already started"):
        distribution.build()


def test_the_private_names_of_tensorflow_are_still_there():
    # TensorFlow 2.21; if this fails, see tfaccel.multiworker.
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.distribute import collective_all_reduce_strategy

    context = multiworker._context()
    assert context._context_handle is not None
    parameters = inspect.signature(context.configure_coordination_service).parameters
    assert {
        "service_type",
        "service_leader",
        "cluster_register_timeout_in_ms",
        "heartbeat_timeout_in_ms",
        "coordinated_jobs",
    } <= set(parameters)
    assert coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=2).num_tasks == 2
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    found = inspect.signature(extended._initialize_local_devices).parameters
    assert list(found) == ["self", "cluster_resolver", "worker_device"]
    with multiworker._on_cpus(2):
        names, kind = extended._initialize_local_devices(None, None, "/job:worker/task:1")
    assert names == (
        "/job:worker/task:1/device:CPU:0",
        "/job:worker/task:1/device:CPU:1",
    )
    assert kind == "CPU"
    assert list(inspect.signature(extended._initialize_local_devices).parameters) == list(found)
