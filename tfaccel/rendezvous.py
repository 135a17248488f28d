"""All workers meet before TensorFlow starts, so that it never waits for one in vain.

TensorFlow's multi-worker strategy blocks in C++, without a limit that helps, until all
workers are there. So each worker first listens on its own port, visits every other,
and leaves once everyone has seen everyone; then TensorFlow binds the freed port.

The words: a visitor sends its card, a line of JSON; the visited answers with its own.
"ready" follows from a visitor that has seen all. "failed ..." from the visited ends it
for both. A connection that breaks before "ready" is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence

from tfaccel.cluster import Cluster, split_address
from tfaccel.errors import UserError, one_line

_SECONDS_BETWEEN_VISITS = 0.2
_SECONDS_FOR_AN_ANSWER = 5.0


def meet(
    cluster: Cluster, *, timeout: float = 120.0, facts: Mapping[str, str] | None = None
) -> None:
    """Returns once all workers are there; the own port is free again then.

    Args:
        cluster: Who is to come, and who this process is.
        timeout: Seconds to wait for all of them.
        facts: What must agree, such as {"TensorFlow": "2.21.0"}.

    Raises:
        UserError: If somebody has not come in time, if the own port is in use, or
            if the workers disagree; the line names the address and the fix.
    """
    meeting = _Meeting(cluster, dict(facts or {}))
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(meeting.hold(timeout))
        except BaseException as error:
            outcome.append(error)

    # A thread of its own: a notebook's thread has a running event loop already.
    thread = threading.Thread(target=run, daemon=True, name="rendezvous")
    thread.start()
    thread.join()
    if outcome:
        raise outcome[0]


class _Meeting:
    def __init__(self, cluster: Cluster, facts: dict[str, str]):
        self.cluster = cluster
        others = set(range(len(cluster.workers))) - {cluster.index}
        self.unseen = dict.fromkeys(sorted(others), "no answer")  # and why
        self.unready = set(others)
        digest = hashlib.sha256("\n".join(cluster.workers).encode()).hexdigest()
        self.card = {
            "tfaccel": 1,
            "index": cluster.index,
            "workers": digest,
            "facts": facts,
        }
        self.visitors: set[asyncio.StreamWriter] = set()
        self.over = False

    async def hold(self, timeout: float) -> None:
        self.all_seen, self.all_ready = asyncio.Event(), asyncio.Event()
        self.failure: asyncio.Future = asyncio.get_running_loop().create_future()
        server = await self.listen()
        visits = [asyncio.ensure_future(self.visit(peer)) for peer in self.unseen]
        if not visits:
            self.all_seen.set()
            self.all_ready.set()
        gathered = asyncio.gather(self.all_ready.wait(), *visits)
        # Looked at, so that asyncio does not complain of what was cancelled.
        gathered.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.wait(
                {gathered, self.failure}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not gathered.done() and not self.failure.done():
                self.fail(self.absent(timeout))
            if self.failure.done():
                await self.tell(str(self.failure.result()))
                raise self.failure.result()
            gathered.result()
        finally:
            self.over = True
            gathered.cancel()
            server.close()
            for visitor in self.visitors:
                visitor.close()

    async def listen(self) -> asyncio.base_events.Server:
        host, port = split_address(self.cluster.address)
        try:
            return await asyncio.start_server(
                self.welcome, "::" if ":" in host else "0.0.0.0", port, reuse_address=True
            )
        except OSError as error:
            raise _port_error(error, self.cluster) from error

    async def visit(self, peer: int) -> None:
        """Visits a worker until it has heard that this one has seen all."""
        host, port = split_address(self.cluster.workers[peer])
        while not self.over:
            try:
                reader, writer = await _soon(asyncio.open_connection(host, port))
            except TimeoutError:
                self.lost(peer, "no answer")
            except OSError as error:
                self.lost(peer, _reason(error))
            else:
                with contextlib.closing(writer):
                    if await self.talk(peer, reader, writer):
                        return
            await asyncio.sleep(_SECONDS_BETWEEN_VISITS)

    async def talk(self, peer: int, reader, writer) -> bool:
        """Returns whether the other side has heard all that it must."""
        try:
            writer.write(_line(self.card))
            answer = await _soon(reader.readline())
            if not self.accept(answer, peer):
                return False
            self.seen(peer)
            # Either all have been seen, or the other side speaks: it ends, or has failed.
            ends = asyncio.ensure_future(reader.readline())
            done = asyncio.ensure_future(self.all_seen.wait())
            await asyncio.wait({ends, done}, return_when=asyncio.FIRST_COMPLETED)
            said = ends.result().decode() if ends.done() else None
            ends.cancel()
            done.cancel()
            if said is not None and not self.all_seen.is_set():
                if said.startswith("failed "):
                    self.fail(UserError(said.removeprefix("failed ").strip()))
                self.lost(peer, "it was there, and has gone")
                return False
            writer.write(b"ready\n")
            await writer.drain()
            return True
        except TimeoutError:
            self.lost(peer, "no answer")
        except (OSError, ValueError) as error:
            self.lost(peer, _reason(error))
        return False

    async def welcome(self, reader, writer) -> None:
        """Answers a visitor."""
        self.visitors.add(writer)
        try:
            card = _parse(await _soon(reader.readline()))
            if card is None:
                return
            writer.write(_line(self.card))
            await writer.drain()
            peer = card.get("index")
            if self.agrees(card, peer) and await reader.readline() == b"ready\n":
                self.unready.discard(peer)
                if not self.unready:
                    self.all_ready.set()
        except (OSError, ValueError):
            pass  # A visitor that breaks off comes again.
        finally:
            self.visitors.discard(writer)
            writer.close()

    def accept(self, answer: bytes, peer: int) -> bool:
        card = _parse(answer)
        if card is None:
            gone = not answer
            self.lost(peer, "no answer" if gone else "another program answers there")
            return False
        if card.get("index") != peer:
            self.fail(
                UserError(
                    f"{self.cluster.workers[peer]} answers as worker {card.get('index')}, "
                    f"expected {peer}: two processes were started with one index, or their "
                    "lists of workers differ in order."
                )
            )
            return False
        return self.agrees(card, peer)

    def agrees(self, card: dict, peer: object) -> bool:
        """Whether a card fits this worker's; fails the meeting if not."""
        if card.get("workers") != self.card["workers"] or peer not in self.peers():
            self.fail(
                UserError(
                    f"worker {peer} was given another list of workers than worker "
                    f"{self.cluster.index}: give all the same, in the same order."
                )
            )
            return False
        own, its = self.card["facts"], card.get("facts", {})
        for name in sorted({*own, *its}):
            if own.get(name) != its.get(name):
                self.fail(
                    UserError(
                        f"the workers disagree: {name} is {own.get(name)} on worker "
                        f"{self.cluster.index} and {its.get(name)} on worker {peer} "
                        f"({self.cluster.workers[peer]}), expected the same on all."
                    )
                )
                return False
        return True

    def peers(self) -> Sequence[int]:
        return [i for i in range(len(self.cluster.workers)) if i != self.cluster.index]

    def seen(self, peer: int) -> None:
        self.unseen.pop(peer, None)
        if not self.unseen:
            self.all_seen.set()

    def lost(self, peer: int, reason: str) -> None:
        self.unseen[peer] = reason

    def fail(self, error: UserError) -> None:
        if not self.failure.done():
            self.failure.set_result(error)

    def absent(self, timeout: float) -> UserError:
        """Who did not come, in one line."""
        missing = self.unseen or dict.fromkeys(
            sorted(self.unready), "it was there, but has not met all others"
        )
        named = "; ".join(
            f"worker {peer}, {self.cluster.workers[peer]} ({reason})"
            for peer, reason in sorted(missing.items())
        )
        return UserError(
            f"worker {self.cluster.index} waited {timeout:g} s for {len(missing)} of "
            f"{len(self.cluster.workers)} workers in vain: {named}. Look at its own output, "
            "let its port through the firewall, or wait longer: distribution.timeout."
        )

    async def tell(self, reason: str) -> None:
        """Tells those who wait here why it ends, so that they end, too."""
        for visitor in list(self.visitors):
            with contextlib.suppress(OSError):
                visitor.write(f"failed {one_line(reason, 1000)}\n".encode())
                await visitor.drain()


async def _soon(coroutine):
    """Returns its result; raises TimeoutError if it takes too long.

    Unlike asyncio.wait_for, which may lose a cancellation before Python 3.12.
    """
    task = asyncio.ensure_future(coroutine)
    done, _ = await asyncio.wait({task}, timeout=_SECONDS_FOR_AN_ANSWER)
    if not done:
        task.cancel()
        raise TimeoutError
    return task.result()


def _line(card: dict) -> bytes:
    return json.dumps(card).encode() + b"\n"


def _parse(line: bytes) -> dict | None:
    try:
        card = json.loads(line)
    except ValueError:
        return None
    return card if isinstance(card, dict) and card.get("tfaccel") == 1 else None


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return one_line(getattr(error, "strerror", None) or error, 80).lower()


def _port_error(error: OSError, cluster: Cluster) -> UserError:
    _, port = split_address(cluster.address)
    fix = (
        "change the address in TF_CONFIG"
        if "TF_CONFIG" in cluster.source
        else "choose another with distribution.port"
    )
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"port {port}, which worker {cluster.index} got from {cluster.source}, is in use "
            f"on this host: end the program that holds it (ss -ltnp 'sport = :{port}' names "
            f"it), or {fix}."
        )
    return UserError(
        f"port {port}, which worker {cluster.index} got from {cluster.source}, cannot be "
        f"opened ({_reason(error)}): {fix}."
    )
