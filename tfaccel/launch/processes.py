"""Runs the workers side by side: their output, signals, and one end for all."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfaccel.errors import UserError
from tfaccel.launch.environment import Worker

# Passed on: Ctrl-C, an end in good order, and what schedulers send before they end a job.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_COLOURS = (36, 33, 35, 32, 34, 31)
_REMEMBERED_LINES = 20
_PR_SET_PDEATHSIG = 1


def run(command: Sequence[str], workers: Sequence[Worker], *, grace: float = 30.0) -> int:
    """Runs a command once a worker; returns the exit status of the first that failed.

    If one fails, the others are told to end (SIGTERM) and ended (SIGKILL) after a
    grace period; each with all processes that it started.

    Args:
        command: What to run, the same for all.
        workers: Who runs it.
        grace: Seconds between SIGTERM and SIGKILL.

    Raises:
        UserError: If the command cannot be started.
    """
    # Reentrant, so that a signal handler may put into it.
    events: queue.SimpleQueue = queue.SimpleQueue()
    with _signals_to(events):
        running = _start(command, workers)
        for process in running:
            process.watch(events)
        supervisor = _Supervisor(running, grace)
        try:
            while supervisor.alive:
                supervisor.handle(_next(events, supervisor.deadline))
        finally:
            supervisor.kill()
            for process in running:
                process.finish()
    return supervisor.report()


class _Process:
    """A worker that runs, in a process group of its own."""

    def __init__(self, command: Sequence[str], worker: Worker):
        self.index = worker.index
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)
        self.status: int | None = None
        self._popen = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **worker.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_ends_with_parent(),
        )
        self._threads: list[threading.Thread] = []

    def watch(self, events: queue.SimpleQueue) -> None:
        """Passes its lines on, and tells when it ends."""
        pairs = ((self._popen.stdout, sys.stdout), (self._popen.stderr, sys.stderr))
        for pipe, stream in pairs:
            self._threads.append(self._in_thread(self._pass_on, pipe, stream))
        self._in_thread(self._tell_end, events)

    def send(self, signal_number: int) -> None:
        """Sends a signal to the worker and all it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal_number)

    def finish(self) -> None:
        """Waits for its end and its last lines."""
        self._popen.wait()
        for thread in self._threads:
            # A stranger that holds the pipe open must not hold us up.
            thread.join(timeout=5)

    def _tell_end(self, events: queue.SimpleQueue) -> None:
        """Tells of its end after its last lines, unless a stranger holds the pipe open."""
        status = self._popen.wait()
        for thread in self._threads:
            thread.join(timeout=1)
        events.put((self, status))

    def _pass_on(self, pipe, stream) -> None:
        prefix = _prefix(self.index, stream)
        for line in _lines(pipe):
            if stream is sys.stderr:
                self.last_lines.append(line)
            # One write, so that lines of workers do not mix.
            stream.write(f"{prefix}{line}\n")
            stream.flush()

    def _in_thread(self, function, *arguments) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread


class _Supervisor:
    """Decides who is to end, and how."""

    def __init__(self, processes: list[_Process], grace: float):
        self.alive = list(processes)
        self.processes = processes
        self.grace = grace
        self.deadline: float | None = None
        self.first_failure: _Process | None = None
        self._interrupted = False

    def handle(self, event: Any) -> None:
        if event is None:
            self.kill()
        elif isinstance(event, int):
            self._signalled(event)
        else:
            self._ended(*event)

    def kill(self) -> None:
        """Ends all processes of all workers for good."""
        self.deadline = None
        for process in self.processes:
            process.send(signal.SIGKILL)

    def report(self) -> int:
        """Says once more what failed first; returns the exit status."""
        failed = self.first_failure
        if failed is None:
            return 0
        how = f"exit status {failed.status}"
        if failed.status < 0:
            how = f"ended by {signal.Signals(-failed.status).name}"
        quiet = self._interrupted or not failed.last_lines
        print(
            f"worker {failed.index} failed first ({how})"
            + ("" if quiet else "; its last lines:"),
            file=sys.stderr,
        )
        for line in () if quiet else failed.last_lines:
            print(f"    {line}", file=sys.stderr)
        return 128 - failed.status if failed.status < 0 else failed.status

    def _signalled(self, number: int) -> None:
        if number == signal.SIGINT and self._interrupted:
            print("ending all workers at once", file=sys.stderr)
            self.kill()
            return
        self._interrupted = self._interrupted or number in (signal.SIGINT, signal.SIGTERM)
        for process in self.alive:
            process.send(number)
        if number == signal.SIGTERM:
            self._begin_grace()

    def _ended(self, process: _Process, status: int) -> None:
        process.status = status
        self.alive.remove(process)
        # What it has started and left behind ends with it.
        process.send(signal.SIGKILL)
        if status == 0 or self.first_failure is not None:
            return
        self.first_failure = process
        if self.alive:
            names = ", ".join(str(other.index) for other in self.alive)
            print(f"worker {process.index} has ended; ending worker {names}", file=sys.stderr)
            for other in self.alive:
                other.send(signal.SIGTERM)
            self._begin_grace()

    def _begin_grace(self) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic() + self.grace


def _start(command: Sequence[str], workers: Sequence[Worker]) -> list[_Process]:
    started: list[_Process] = []
    try:
        for worker in workers:
            started.append(_Process(command, worker))
    except OSError as error:
        for process in started:
            process.send(signal.SIGKILL)
        raise UserError(
            f"{command[0]} cannot be started ({error.strerror}): write a program and its "
            "arguments after --, or only arguments for tfaccel.train."
        ) from error
    return started


def _next(events: queue.SimpleQueue, deadline: float | None) -> Any:
    """Returns the next event, None once the deadline has passed."""
    if deadline is None:
        return events.get()
    try:
        return events.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None


@contextlib.contextmanager
def _signals_to(events: queue.SimpleQueue) -> Iterator[None]:
    # nohup has it ignored, and the workers inherit that.
    kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {
        number: signal.signal(number, lambda received, frame: events.put(int(received)))
        for number in _PASSED_ON
        if number not in kept
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ends_with_parent() -> Callable[[], None] | None:
    """What a worker does first: ask Linux to end it should the launcher be killed."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None  # Another system than Linux.
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _lines(pipe) -> Iterator[str]:
    """Yields lines as they come; a progress bar's returns end lines, too."""
    pending = b""
    while chunk := pipe.read1(65_536):
        *complete, pending = (
            (pending + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        )
        yield from (line.decode(errors="replace") for line in complete)
    if pending:
        yield pending.decode(errors="replace")


def _prefix(index: int, stream) -> str:
    if not stream.isatty() or "NO_COLOR" in os.environ:
        return f"[{index}] "
    return f"\x1b[{_COLOURS[index % len(_COLOURS)]}m[{index}]\x1b[0m "


def command_line(words: Sequence[str], module: str | None) -> list[str]:
    """Returns the command that the words after "--" stand for.

    Args:
        words: Arguments of the module, or a program with its arguments.
        module: The module that --module names; None for tfaccel.train.

    Example:
        >>> command_line(["--config=quickstart"], None)[1:]
        ['-m', 'tfaccel.train', '--config=quickstart']
    """
    if module is None and words and not words[0].startswith("-"):
        script = words[0].endswith(".py") and not os.access(words[0], os.X_OK)
        return [sys.executable, *words] if script else list(words)
    return [sys.executable, "-m", module or "tfaccel.train", *words]
