import json
import sys

import pytest

from tfaccel import cluster
from tfaccel.cluster import Cluster
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False
AB = ["a:2222", "b:2222"]


def config(jobs, task):
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task})}


def task(index, kind="worker"):
    return {"type": kind, "index": index}


def slurm(**changes):
    """The variables of the third of four tasks of srun -N2 --ntasks-per-node=2."""
    return {
        "SLURM_JOB_ID": "1234",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "n[09-10]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_PROCID": "2",
        "SLURMD_NODENAME": "n10",
        **changes,
    }


def refused(environment, **arguments):
    with pytest.raises(UserError) as error:
        cluster.discover(environment, **arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_environment_that_names_no_workers():
    assert cluster.discover({"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}) is None


@pytest.mark.parametrize(
    ("jobs", "own", "workers", "index"),
    [
        ({"worker": AB}, task(0), ("a:2222", "b:2222"), 0),
        ({"worker": AB}, task(1), ("a:2222", "b:2222"), 1),
        # Kubeflow writes numbers as text at times.
        ({"worker": AB}, task("1"), ("a:2222", "b:2222"), 1),
        # The chief comes first.
        ({"worker": AB, "chief": ["c:1"]}, task(0, "chief"), ("c:1", *AB), 0),
        ({"worker": AB, "chief": ["c:1"]}, task(1), ("c:1", *AB), 2),
        ({"chief": ["c:1"]}, task(0, "chief"), ("c:1",), 0),
        ({"worker": AB, "ps": []}, task(0), ("a:2222", "b:2222"), 0),
        ({"worker": ["[2001:db8::1]:5"]}, task(0), ("[2001:db8::1]:5",), 0),
    ],
)
def test_tf_config(jobs, own, workers, index):
    found = cluster.discover(config(jobs, own))
    assert found == Cluster(workers, index, "TF_CONFIG")
    assert found.is_chief == (index == 0)
    assert found.address == workers[index]


def test_tf_config_of_our_launcher_has_shared_out_the_gpus():
    environment = {
        "TF_CONFIG": cluster.tf_config(AB, 1),
        cluster.LAUNCHED: "1",
    }
    assert cluster.discover(environment) == Cluster(tuple(AB), 1, "tfaccel.launch", True)


FORM = (
    'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", '
    '"index": 0}}: mend it or unset it.'
)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TF_CONFIG": ""}, f"received TF_CONFIG='', which is empty, {FORM}"),
        ({"TF_CONFIG": " "}, f"received TF_CONFIG=' ', which is empty, {FORM}"),
        (
            {"TF_CONFIG": "{worker"},
            "received TF_CONFIG='{worker', which is not JSON (Expecting property name enclosed "
            f"in double quotes: line 1 column 2 (char 1)), {FORM}",
        ),
        ({"TF_CONFIG": "[]"}, f"received TF_CONFIG='[]', which names no cluster, {FORM}"),
        ({"TF_CONFIG": "{}"}, f"received TF_CONFIG='{{}}', which names no cluster, {FORM}"),
        (
            config({"worker": []}, task(0)),
            'received TF_CONFIG=\'{"cluster": {"worker": []}, "task": {"type": '
            f'"worker", "index": 0}}}}\', which names no cluster, {FORM}',
        ),
        (
            config({"worker": "a:1"}, task(0)),
            f'received TF_CONFIG cluster.worker="a:1", {FORM}',
        ),
        (config({"worker": AB}, None), f"received TF_CONFIG task=null, {FORM}"),
        (
            config({"worker": AB}, task(2)),
            "received TF_CONFIG task.index=2, expected a whole number from 0 to 1 (2 "
            "worker(s)).",
        ),
        (
            config({"worker": AB}, task(-1)),
            "received TF_CONFIG task.index=-1, expected a whole number from 0 to 1 (2 "
            "worker(s)).",
        ),
        (
            config({"worker": AB}, {"type": "worker"}),
            "received TF_CONFIG task.index=null, expected a whole number from 0 to 1 (2 "
            "worker(s)).",
        ),
        (
            config({"worker": AB}, task(True)),
            "received TF_CONFIG task.index=true, expected a whole number from 0 to 1 (2 "
            "worker(s)).",
        ),
        (
            config({"worker": AB}, task(0, "wroker")),
            'received TF_CONFIG task.type="wroker", expected one of the cluster\'s: worker.',
        ),
        (
            config({"worker": AB}, task(0, "chief")),
            'received TF_CONFIG task.type="chief", expected one of the cluster\'s: worker.',
        ),
        (
            config({"worker": AB, "ps": ["p:1"]}, task(0)),
            "received TF_CONFIG cluster.ps, expected chief and worker only. Parameter servers "
            "are not supported: leave ps out.",
        ),
        (
            config({"worker": AB, "chief": ["c:1", "d:1"]}, task(0)),
            "received 2 chiefs in TF_CONFIG, expected one.",
        ),
        (
            config({"worker": ["a:1", "b:1", "a:1"]}, task(0)),
            "received the address a:1 twice from TF_CONFIG (workers 0 and 2), expected one of "
            "its own for each.",
        ),
        (
            config({"worker": ["a"]}, task(0)),
            "received the address 'a', expected host:port, such as n1:2222; it is from "
            "TF_CONFIG.",
        ),
        (
            config({"worker": ["a:70000"]}, task(0)),
            "received the address 'a:70000', expected host:port, such as n1:2222; it is from "
            "TF_CONFIG.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tf_config_that_makes_no_sense_is_quoted(environment, message):
    assert refused(environment) == message


def test_tf_config_names_the_ports_itself():
    assert refused(config({"worker": AB}, task(0)), port=3000) == (
        "received distribution.port=3000 with TF_CONFIG, which names the ports itself: leave "
        "distribution.port out."
    )


def test_slurm():
    found = cluster.discover(slurm(), port=3000)
    workers = ("n09:3000", "n09:3001", "n10:3000", "n10:3001")
    assert found == Cluster(workers, 2, "Slurm job 1234")
    assert (found.local_index, found.local_count) == (0, 2)
    assert str(found) == (
        "4 worker(s) from Slurm job 1234: n09:3000, n09:3001, n10:3000, n10:3001; this is "
        "worker 2, 0 of 2 on its host"
    )


def test_slurm_ports_follow_from_the_job_and_its_step():
    first = cluster.discover(slurm()).workers
    assert cluster.discover(slurm(SLURM_PROCID="0", SLURMD_NODENAME="n09")).workers == first
    # 1234 % 300 would collide with job 1534: the number is hashed. Values by hand, so
    # that a change, after which old and new workers would not meet, is noticed.
    assert cluster.job_port("1234") == 12_000 + 64 * (2615402659 % 300)
    assert cluster.discover(slurm(SLURM_STEP_ID="1")).workers != first
    ports = [cluster.job_port(str(job)) for job in range(1000)]
    # 64 workers a host fit, below what Linux gives to outgoing connections (32768).
    assert min(ports) == 12_000
    assert max(ports) + 63 < 32_768


@pytest.mark.parametrize(
    ("variable", "shared_out"),
    [("SLURM_GPUS_PER_TASK", True), ("SLURM_GPUS_PER_NODE", False)],
)
def test_slurm_has_shared_out_the_gpus_if_asked_by_task(variable, shared_out):
    assert cluster.discover(slurm(**{variable: "1"})).gpus_shared_out is shared_out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"SLURM_PROCID": "4"},
            "received SLURM_PROCID='4', expected a whole number from 0 to 3 (4 tasks in "
            "SLURM_STEP_TASKS_PER_NODE).",
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"},
            "received SLURM_STEP_NODELIST='n[09-10]' (2 nodes) with SLURM_STEP_TASKS_PER_NODE="
            "'2(x3)' (3), expected as many.",
        ),
        # srun --distribution=cyclic deals the ranks out in turn.
        (
            {"SLURM_PROCID": "1"},
            "received SLURM_PROCID=1 on SLURMD_NODENAME='n10', expected it on n09: start with "
            "srun --distribution=block.",
        ),
    ],
)
def test_slurm_that_makes_no_sense(changes, message):
    assert refused(slurm(**changes)) == message


def test_train_job():
    environment = {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "run-node-0-0.run",
        "PET_MASTER_PORT": "29400",
    }
    workers = tuple(f"run-node-0-{i}.run:29400" for i in range(3))
    assert cluster.discover(environment) == Cluster(workers, 1, "a Kubernetes TrainJob")
    assert cluster.discover(environment, port=5).workers[0] == "run-node-0-0.run:5"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PET_NNODES": "1:4"}, "received PET_NNODES='1:4', expected a whole number."),
        ({"PET_NODE_RANK": ""}, "received PET_NODE_RANK='', expected a whole number."),
        (
            {"PET_MASTER_ADDR": "10.0.0.1"},
            "received PET_MASTER_ADDR='10.0.0.1', expected the first node's name, such as "
            "train-node-0-0.train.",
        ),
        (
            {"PET_NODE_RANK": "2"},
            "received the index 2 from a Kubernetes TrainJob, expected a whole number from 0 "
            "to 1.",
        ),
    ],
)
def test_train_job_that_makes_no_sense(changes, message):
    first = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "r-node-0-0.r"}
    assert refused({**first, **changes}) == message


def test_indexed_job():
    environment = {
        "TFACCEL_WORKERS": "2",
        "TFACCEL_SERVICE": "train",
        "JOB_COMPLETION_INDEX": "1",
        "HOSTNAME": "digits-1",
    }
    found = cluster.discover(environment)
    workers = ("digits-0.train:2222", "digits-1.train:2222")
    assert found == Cluster(workers, 1, "the Kubernetes Job digits")


def test_a_job_that_is_no_cluster():
    # Each pod of an indexed Job may have work of its own.
    assert cluster.discover({"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "sweep-1"}) is None


def test_indexed_job_without_its_service():
    assert refused(
        {"TFACCEL_WORKERS": "2", "JOB_COMPLETION_INDEX": "1", "HOSTNAME": "digits-1"}
    ) == (
        "received TFACCEL_WORKERS=2 with TFACCEL_SERVICE='' and HOSTNAME='digits-1', expected "
        "the name of the headless service and of a pod that ends in -1 (docs/cluster.md has a "
        "Job to copy)."
    )


MPI = {
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "PMI": {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
}


@pytest.mark.parametrize("source", MPI)
def test_ranks_of_mpi_on_several_hosts(source):
    found = cluster.discover({**MPI[source], "TFACCEL_HOSTS": "a, b"}, port=3000)
    assert found == Cluster(("a:3000", "a:3001", "b:3000", "b:3001"), 3, source)


def test_ranks_of_mpi_on_one_host_need_no_list():
    environment = {**MPI["Open MPI"], "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    workers = tuple(f"127.0.0.1:{port}" for port in range(3000, 3004))
    assert cluster.discover(environment, port=3000) == Cluster(workers, 3, "Open MPI")


@pytest.mark.parametrize(
    "ranks",
    [{"PMI_RANK": "1", "PMI_SIZE": "2"}, {"PMIX_RANK": "1", "TFACCEL_WORKERS": "2"}],
    ids=["PMI", "PMIx"],
)
def test_ranks_of_mpi_that_do_not_know_their_neighbours(ranks):
    found = cluster.discover({**ranks, "TFACCEL_HOSTS": "a,b"}, port=9)
    assert (found.workers, found.index) == (("a:9", "b:9"), 1)


def test_a_rank_alone_is_no_cluster():
    assert cluster.discover({"PMIX_RANK": "0"}) is None


@pytest.mark.parametrize("hosts", ["", "a", "a,b,c"])
def test_ranks_of_mpi_need_their_hosts(hosts):
    assert refused({**MPI["Open MPI"], "TFACCEL_HOSTS": hosts}) == (
        "received OMPI_COMM_WORLD_SIZE=4 from Open MPI with 2 rank(s) on this host and "
        f"TFACCEL_HOSTS={hosts!r}, expected the hosts in the order of the ranks, as many ranks "
        "on each: mpirun -x TFACCEL_HOSTS=a,b ..."
    )


def test_tf_config_comes_before_the_scheduler():
    # tfaccel.launch within a Slurm job, for instance.
    environment = {**slurm(), **MPI["PMI"], **config({"worker": AB}, task(1))}
    assert cluster.discover(environment) == Cluster(tuple(AB), 1, "TF_CONFIG")
    assert cluster.discover({**slurm(), **MPI["PMI"]}).source == "Slurm job 1234"


@pytest.mark.parametrize(
    ("workers", "index", "place", "count"),
    [
        (["a:1", "a:2", "b:1", "a:3"], 0, 0, 3),
        (["a:1", "a:2", "b:1", "a:3"], 3, 2, 3),
        (["a:1", "a:2", "b:1", "a:3"], 2, 0, 1),
        (["[::1]:1", "[::1]:2"], 1, 1, 2),
    ],
)
def test_neighbours_are_the_workers_of_the_same_host(workers, index, place, count):
    found = Cluster(tuple(workers), index, "TF_CONFIG")
    assert (found.local_index, found.local_count) == (place, count)


def test_a_long_list_is_shortened_in_the_log():
    workers = tuple(f"n{i}:1" for i in range(9))
    assert str(Cluster(workers, 0, "TF_CONFIG")) == (
        "9 worker(s) from TF_CONFIG: n0:1, n1:1, n2:1, n3:1, n4:1, n5:1, n6:1, n7:1, ...; this "
        "is worker 0 (the chief)"
    )


def test_tensorflow_is_not_needed(fresh_python, tmp_path):
    code = "import sys, tfaccel.cluster, tfaccel.rendezvous; print('tensorflow' in sys.modules)"
    assert fresh_python("-c", code, cwd=tmp_path).stdout == "False\n"
    assert "tfaccel.cluster" in sys.modules
