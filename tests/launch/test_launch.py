"""Workers here are a few lines of Python; tests/test_multiworker.py starts real ones."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

import tfaccel
from tfaccel import cli
from tfaccel.launch import __main__ as launch
from tfaccel.launch import processes

NEEDS_TENSORFLOW = False
HEAD = """
import json, os, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
"""


@pytest.fixture
def script(tmp_path):
    """Writes a worker's program; `index` is its own."""

    def write(body):
        path = tmp_path / "worker.py"
        path.write_text(HEAD + textwrap.dedent(body))
        return str(path)

    return write


@pytest.fixture
def launched(fresh_python, tmp_path):
    """Runs the launcher to its end."""

    def run(*arguments, **environment):
        return fresh_python("-m", "tfaccel.launch", *arguments, cwd=tmp_path, **environment)

    return run


@pytest.fixture
def running(tmp_path):
    """Starts the launcher; it is killed in the end."""
    started = []

    def start(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(Path(tfaccel.__file__).parents[1])}
        process = subprocess.Popen(
            [sys.executable, "-m", "tfaccel.launch", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def gone(path):
    """Whether the process whose number a file holds has ended."""
    number = int(path.read_text())
    return not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie"


def test_lines_are_prefixed_and_the_log_says_what_starts(script, launched):
    done = launched(
        "--workers=2",
        "--",
        script("print('hello from', index); print('a warning', file=sys.stderr)"),
    )
    assert done.returncode == 0
    first, *lines = done.stdout.splitlines()
    assert first.startswith("launch: 2 of 2 worker(s) here, each with no GPU and ")
    assert sorted(lines) == ["[0] hello from 0", "[1] hello from 1"]
    assert sorted(done.stderr.splitlines()) == ["[0] a warning", "[1] a warning"]


def test_each_worker_knows_all_others(script, launched):
    done = launched("--workers=3", "--", script("print(os.environ['TF_CONFIG'])"))
    told = [json.loads(line.partition(" ")[2]) for line in sorted(done.stdout.splitlines()[1:])]
    workers = told[0]["cluster"]["worker"]
    assert len(set(workers)) == 3
    assert all(address.startswith("127.0.0.1:") for address in workers)
    assert told == [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        for index in range(3)
    ]


def test_several_hosts_without_a_scheduler(script, launched):
    done = launched(
        "--hosts=a,b", "--index=1", "--workers=2", "--port=3000",
        "--", script("print(os.environ['TF_CONFIG'])"),
    )  # fmt: skip
    told = [json.loads(line.partition(" ")[2]) for line in sorted(done.stdout.splitlines()[1:])]
    assert [t["task"]["index"] for t in told] == [2, 3]
    assert told[0]["cluster"]["worker"] == ["a:3000", "a:3001", "b:3000", "b:3001"]
    assert done.stdout.startswith("launch: 2 of 4 worker(s) here, ")


def test_cpus_are_shared_out(script, launched):
    body = "print(os.environ['OMP_NUM_THREADS'], os.environ['TFACCEL_CPUS'])"
    done = launched("--workers=2", "--", script(body), TFACCEL_CPUS="1")
    assert sorted(done.stdout.splitlines()[1:]) == ["[0] 1 1", "[1] 1 1"]


def test_the_first_failure_ends_all_and_is_shown_last(script, launched):
    body = """
    if index == 1:
        sys.exit("no such file")
    time.sleep(600)
    """
    done = launched("--workers=3", "--", script(body))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "[1] no such file",
        "worker 1 has ended; ending worker 0, 2",
        "worker 1 failed first (exit status 1); its last lines:",
        "    no such file",
    ]


def test_a_worker_that_dies_of_a_signal(script, launched):
    body = "import signal\nif index == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    done = launched("--workers=2", "--", script(body))
    assert done.returncode == 128 + 9
    assert done.stderr.splitlines()[-1] == "worker 0 failed first (ended by SIGKILL)"


def test_a_worker_that_does_not_end_is_killed_with_what_it_started(script, launched, tmp_path):
    body = """
    import signal, subprocess
    if index == 1:
        while not os.path.exists("child"): time.sleep(0.05)
        sys.exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    open("part", "w").write(str(child.pid))
    os.rename("part", "child")
    time.sleep(600)
    """
    done = launched("--workers=2", "--grace=0.2", "--", script(body))
    assert done.returncode == 3
    wait_for(lambda: gone(tmp_path / "child"))


def test_a_worker_that_does_not_heed_sigterm_is_killed(script, running, tmp_path):
    body = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"ready{index}", "w").close()
    time.sleep(600)
    """
    process = running("--workers=2", "--grace=0.2", "--", script(body))
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 5), (signal.SIGUSR1, 6)]
)
def test_signals_are_passed_on(script, running, tmp_path, sent, status):
    body = """
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(6))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    open(f"ready{index}", "w").close()
    time.sleep(600)
    """
    process = running("--workers=2", "--", script(body))
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2)
    process.send_signal(sent)
    assert process.wait(timeout=60) == status


def test_nohup_is_heeded(script, running, tmp_path):
    body = """
    open(f"ready{index}", "w").close()
    while not os.path.exists("end"): time.sleep(0.05)
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = running("--workers=1", "--", script(body))
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for((tmp_path / "ready0").exists)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "end").touch()
    assert process.wait(timeout=60) == 0


def test_a_second_ctrl_c_kills(script, running, tmp_path):
    body = """
    import signal
    signal.signal(signal.SIGINT, lambda *_: open(f"heard{index}", "w").close())
    open(f"ready{index}", "w").close()
    while True: time.sleep(0.05)
    """
    process = running("--workers=2", "--", script(body))
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: len(list(tmp_path.glob("heard*"))) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 128 + 9
    assert "ending all workers at once" in process.stderr.read()


def test_no_worker_outlives_a_killed_launcher(script, running, tmp_path):
    body = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"part{index}", "w").write(str(os.getpid()))
    os.rename(f"part{index}", f"worker{index}")
    time.sleep(600)
    """
    process = running("--workers=2", "--", script(body))
    wait_for(lambda: len(list(tmp_path.glob("worker?"))) == 2)
    process.kill()
    process.wait()
    wait_for(lambda: all(gone(path) for path in tmp_path.glob("worker?")))


def test_a_progress_bar_comes_as_lines(script, launched):
    done = launched("--workers=1", "--", script("sys.stdout.write('1/2\\r2/2\\r\\nend')"))
    assert done.stdout.splitlines()[1:] == ["[0] 1/2", "[0] 2/2", "[0] end"]


@pytest.mark.parametrize(
    ("words", "module", "command"),
    [
        (["--config=x"], None, [sys.executable, "-m", "tfaccel.train", "--config=x"]),
        ([], None, [sys.executable, "-m", "tfaccel.train"]),
        (["-x"], "my.module", [sys.executable, "-m", "my.module", "-x"]),
        (["x"], "my.module", [sys.executable, "-m", "my.module", "x"]),
        (["train.py", "-x"], None, [sys.executable, "train.py", "-x"]),
        (["python3", "train.py"], None, ["python3", "train.py"]),
    ],
)
def test_the_command(words, module, command):
    assert processes.command_line(words, module) == command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--workers=2"],
            "received no --, expected it before what to run: python -m tfaccel.launch "
            "--workers=2 -- --config=quickstart.",
        ),
        (["--workers=two", "--"], "received workers=two, expected a whole number."),
        (["--workers=0", "--"], "received workers=0: 0 is not a positive integer"),
        (
            ["--hosts=a,b", "--"],
            "received --hosts=a,b without --index, expected which of them this host is, from 0 "
            "to 1.",
        ),
        (["--index=0", "--"], "received --index without --hosts, expected all hosts' names "
                              "with it."),
        (["--hosts=a,b", "--index=2", "--"],
         "received --index=2 with 2 host(s), expected 0 to 1."),
        (
            ["--hosts=a,a", "--index=0", "--"],
            "received a twice in --hosts: name it once, with --workers=2 for two workers on "
            "each host.",
        ),
        (
            ["--gpus_per_worker=2", "--workers=2", "--"],
            "received --workers=2 with 2 GPU(s) for each, but this host has 3: start fewer "
            "workers, or train on CPUs with --gpus_per_worker=0.",
        ),
        (
            ["--workers=4", "--"],
            "received --workers=4 with 1 GPU(s) for each, but this host has 3: start fewer "
            "workers, or train on CPUs with --gpus_per_worker=0.",
        ),
        (
            ["--", "no_such_program"],
            "no_such_program cannot be started (No such file or directory): write a program "
            "and its arguments after --, or only arguments for tfaccel.train.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert cli.main(launch.run, ["launch", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_help(launched):
    done = launched("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Starts several workers of one training on this host")
    assert "--gpus_per_worker: " in done.stdout


def test_horovod_is_for_this_host(capsys):
    assert cli.main(launch.run, ["launch", "--horovod", "--port=3000", "--"]) == 2
    assert capsys.readouterr().err == (
        "error: received --horovod with --hosts or --port: we start Horovod's workers on this "
        "host only. For several hosts there is horovodrun -np 4 -H a:2,b:2.\n"
    )


def test_horovod_that_is_missing(capsys, monkeypatch):
    for name in ("horovod", "horovod.runner"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(launch.run, ["launch", "--horovod", "--workers=2", "--"]) == 2
    assert "build it with scripts/install_horovod.sh" in capsys.readouterr().err


def test_tensorflow_is_not_needed(fresh_python, tmp_path):
    code = "import sys, tfaccel.launch.__main__; print('tensorflow' in sys.modules)"
    assert fresh_python("-c", code, cwd=tmp_path).stdout == "False\n"
