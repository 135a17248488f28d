import socket
import threading
import time

import pytest

from tfaccel import rendezvous
from tfaccel.cluster import Cluster
from tfaccel.errors import UserError
from tfaccel.launch import environment

NEEDS_TENSORFLOW = False


def addresses(count):
    """Free addresses of this host."""
    return [f"127.0.0.1:{port}" for port in environment.free_ports(count)]


def cluster(workers, index, source="TF_CONFIG"):
    return Cluster(tuple(workers), index, source)


def meet_all(clusters, timeout=20.0, facts=None, delays=()):
    """Lets workers meet, each in a thread; returns each one's error, or None."""
    outcomes = [None] * len(clusters)

    def run(place):
        try:
            time.sleep(delays[place] if delays else 0)
            own = facts[place] if facts else None
            rendezvous.meet(clusters[place], timeout=timeout, facts=own)
        except UserError as error:
            outcomes[place] = str(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(clusters))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def port_of(address):
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_all_meet_and_leave_their_ports_free(count):
    workers = addresses(count)
    assert meet_all([cluster(workers, i) for i in range(count)]) == [None] * count
    for address in workers:
        # As TensorFlow binds it next.
        with socket.create_server(("", port_of(address))):
            pass


def test_workers_wait_for_the_last():
    workers = addresses(3)
    clusters = [cluster(workers, i) for i in range(3)]
    assert meet_all(clusters, delays=[0, 0.5, 1]) == [None] * 3


def test_a_worker_that_never_comes_is_named():
    workers = addresses(2)
    assert meet_all([cluster(workers, 0)], timeout=2) == [
        f"worker 0 waited 2 s for 1 of 2 workers in vain: worker 1, {workers[1]} "
        "(connection refused). Look at its own output, let its port through the firewall, "
        "or wait longer: distribution.timeout."
    ]


def test_all_that_wait_tell_the_same_name():
    # The first to give up tells the others, so that they end at once.
    workers = addresses(3)
    first, second = meet_all([cluster(workers, 0), cluster(workers, 1)], timeout=3)
    for message in (first, second):
        assert f"worker 2, {workers[2]} (connection refused)" in message


def test_a_name_that_does_not_resolve_is_told():
    workers = [*addresses(1), "nowhere.invalid:2222"]
    (message,) = meet_all([cluster(workers, 0)], timeout=2)
    assert "worker 1, nowhere.invalid:2222 (" in message


def test_another_program_at_the_address_is_told():
    workers = addresses(2)
    with socket.create_server(("127.0.0.1", port_of(workers[1]))) as server:

        def speak():
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=speak, daemon=True).start()
        (message,) = meet_all([cluster(workers, 0)], timeout=2)
    assert f"worker 1, {workers[1]} (another program answers there)" in message or (
        f"worker 1, {workers[1]} (no answer)" in message
    )


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        ("TF_CONFIG", "change the address in TF_CONFIG."),
        ("Slurm job 7", "choose another with distribution.port."),
    ],
)
def test_a_port_in_use_is_told_with_the_fix(source, fix):
    workers = addresses(2)
    port = port_of(workers[0])
    with socket.create_server(("127.0.0.1", port)):
        (message,) = meet_all([cluster(workers, 0, source)])
    assert message == (
        f"port {port}, which worker 0 got from {source}, is in use on this host: end the "
        f"program that holds it (ss -ltnp 'sport = :{port}' names it), or {fix}"
    )


def test_workers_with_other_lists_are_told():
    workers = addresses(3)
    outcomes = meet_all([cluster(workers, 0), cluster(workers[:2], 1)], timeout=20)
    assert any("was given another list of workers" in str(outcome) for outcome in outcomes)
    assert None not in outcomes


def test_two_workers_of_one_index_are_told():
    # Two hosts were given index 0; the address of worker 1 leads to the second of them.
    real, fake, third = addresses(3)
    first = cluster([real, fake], 0)
    other = cluster([fake, third], 0)
    (first_message, _) = meet_all([first, other], timeout=20)
    assert first_message is not None


@pytest.mark.parametrize("place", [0, 1])
def test_facts_that_differ_are_told(place):
    workers = addresses(2)
    facts = [{"TensorFlow": "2.21.0", "devices": "1 CPU"}, {"TensorFlow": "2.21.0"}]
    facts[1]["devices"] = "2 GPU"
    outcomes = meet_all([cluster(workers, i) for i in range(2)], facts=facts, timeout=20)
    assert "the workers disagree: devices is " in outcomes[place]
    assert "expected the same on all." in outcomes[place]
