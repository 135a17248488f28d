"""Which workers train together, as the environment says; imports no TensorFlow.

Understood are, in this order: TF_CONFIG (set by hand, by tfaccel.launch or by
Kubeflow's TFJob), Slurm's srun, Kubeflow's TrainJob, Kubernetes' indexed Job, and
the ranks of Open MPI and PMI.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence

from tfaccel import slurm
from tfaccel.errors import UserError, did_you_mean

# What tfaccel.launch sets besides TF_CONFIG: it has shared out the GPUs itself.
LAUNCHED = "TFACCEL_LAUNCHED"
# When, for names that all workers must agree on.
STARTED = "TFACCEL_STARTED"
# What an indexed Job, or MPI on several hosts, must be told (docs/cluster.md).
WORKERS, SERVICE, HOSTS = "TFACCEL_WORKERS", "TFACCEL_SERVICE", "TFACCEL_HOSTS"
# TensorFlow's own examples use it; free wherever each worker has its own address.
_PORT = 2222
_TF_CONFIG_FORM = (
    '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
)
_TASKS = ("chief", "worker")
# The variables of the rank, the number of ranks, and the number on this host.
_MPI = {
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "PMI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    # PMIx alone tells the rank only.
    "PMIx": ("PMIX_RANK", WORKERS, ""),
}
# What tells the jobs of one host apart, so that their ports differ.
_MPI_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that train together, and which of them this process is.

    Args:
        workers: Their addresses, "host:port", the chief's first.
        index: This process's place among them, from 0.
        source: Who said so, such as "Slurm job 1234".
        gpus_shared_out: Whether each worker was given GPUs of its own.

    Example:
        cluster = tfaccel.cluster.discover()
        if cluster and cluster.is_chief:
            print("the chief of", len(cluster.workers))
    """

    workers: tuple[str, ...]
    index: int
    source: str
    gpus_shared_out: bool = False

    def __post_init__(self) -> None:
        _check_addresses(self.workers, self.source)
        if not 0 <= self.index < len(self.workers):
            raise UserError(
                f"received the index {self.index} from {self.source}, expected "
                f"{_range(len(self.workers))}."
            )

    @property
    def address(self) -> str:
        """The "host:port" of this worker."""
        return self.workers[self.index]

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which writes for all."""
        return self.index == 0

    @property
    def local_index(self) -> int:
        """The place of this worker among those of its host, from 0."""
        return self._neighbours().index(self.address)

    @property
    def local_count(self) -> int:
        """How many workers this worker's host has."""
        return len(self._neighbours())

    def __str__(self) -> str:
        shown = ", ".join(self.workers[:8]) + (", ..." if len(self.workers) > 8 else "")
        alone = self.local_count == 1
        share = "" if alone else f", {self.local_index} of {self.local_count} on its host"
        return (
            f"{len(self.workers)} worker(s) from {self.source}: {shown}; this is worker "
            f"{self.index}{' (the chief)' if self.is_chief else ''}{share}"
        )

    def _neighbours(self) -> list[str]:
        host = split_address(self.address)[0]
        return [a for a in self.workers if split_address(a)[0] == host]


def discover(environment: Mapping[str, str] | None = None, *, port: int = 0) -> Cluster | None:
    """Returns the cluster that the environment describes, None if it names none.

    Args:
        environment: Its variables; this process's if None.
        port: The first port of each host, for those who name hosts but no ports
            (Slurm, Kubernetes, MPI); 0 chooses one that all workers agree on.

    Raises:
        UserError: If what it says makes no sense; one line that quotes it.
    """
    environment = os.environ if environment is None else environment
    readers = (_from_tf_config, _from_slurm, _from_train_job, _from_indexed_job, _from_mpi)
    found = (reader(environment, port) for reader in readers)
    return next((cluster for cluster in found if cluster is not None), None)


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and port of "host:port" or "[2001:db8::1]:port".

    Raises:
        UserError: If it is no address.
    """
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[\w.-]+):(\d{1,5})", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UserError(
            f"received the address {address!r}, expected host:port, such as n1:2222."
        )
    return match[1].strip("[]"), int(match[2])


def tf_config(workers: Sequence[str], index: int) -> str:
    """Returns the TF_CONFIG of one of some workers."""
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": list(workers)}, "task": task})


def job_port(job: str) -> int:
    """Returns the first of 64 ports for a job: the same for all its workers.

    Below the range from which Linux takes ports for outgoing connections.
    """
    return 12_000 + 64 * (zlib.crc32(job.encode()) % 300)


def _from_tf_config(environment, port) -> Cluster | None:
    if "TF_CONFIG" not in environment:
        return None
    text = environment["TF_CONFIG"]
    try:
        told = json.loads(text)
    except json.JSONDecodeError as error:
        problem = "is empty" if not text.strip() else f"is not JSON ({error})"
        raise _tf_config_error(f"TF_CONFIG={_short(text)!r}, which {problem}") from None
    jobs = told.get("cluster") if isinstance(told, dict) else None
    if not isinstance(jobs, dict) or not any(jobs.values()):
        raise _tf_config_error(f"TF_CONFIG={_short(text)!r}, which names no cluster")
    workers = [address for task in _TASKS for address in _addresses(jobs, task)]
    _check_tasks(jobs)
    if port:
        raise UserError(
            f"received distribution.port={port} with TF_CONFIG, which names the ports "
            "itself: leave distribution.port out."
        )
    source = "tfaccel.launch" if LAUNCHED in environment else "TF_CONFIG"
    index = _task_index(told.get("task"), jobs)
    return Cluster(tuple(workers), index, source, gpus_shared_out=LAUNCHED in environment)


def _addresses(jobs, task: str) -> list[str]:
    found = jobs.get(task, [])
    if not isinstance(found, list) or not all(isinstance(a, str) for a in found):
        raise _tf_config_error(f"TF_CONFIG cluster.{task}={_short(json.dumps(found))}")
    return found


def _check_tasks(jobs) -> None:
    for task in jobs:
        if task not in _TASKS and jobs[task]:
            hint = {"ps": "Parameter servers are not supported: ", "master": "Write chief: "}
            hint["evaluator"] = "Workers evaluate themselves: "
            raise UserError(
                f"received TF_CONFIG cluster.{task}, expected chief and worker only. "
                f"{hint.get(task, did_you_mean(task, _TASKS) + ' ')}leave {task} out."
            )
    if len(jobs.get("chief", [])) > 1:
        raise UserError(f"received {len(jobs['chief'])} chiefs in TF_CONFIG, expected one.")


def _task_index(task, jobs) -> int:
    if not isinstance(task, dict):
        raise _tf_config_error(f"TF_CONFIG task={_short(json.dumps(task))}")
    kind, index = task.get("type"), task.get("index")
    if kind not in _TASKS or not jobs.get(kind):
        present = [name for name in _TASKS if jobs.get(name)]
        raise UserError(
            f"received TF_CONFIG task.type={json.dumps(kind)}, expected one of the cluster's: "
            f"{', '.join(present)}."
        )
    number = int(index) if re.fullmatch(r"\d+", str(index)) else -1
    if not 0 <= number < len(jobs[kind]):
        raise UserError(
            f"received TF_CONFIG task.index={json.dumps(index)}, expected "
            f"{_range(len(jobs[kind]))} ({len(jobs[kind])} {kind}(s))."
        )
    return number + (len(jobs.get("chief", [])) if kind == "worker" else 0)


def _from_slurm(environment, port) -> Cluster | None:
    step = slurm.step(environment)
    if step is None:
        return None
    first = port or job_port(step.name)
    workers = [
        f"{host}:{first + place}"
        for host, tasks in zip(step.nodes, step.tasks, strict=True)
        for place in range(tasks)
    ]
    shared = any(name in environment for name in slurm.OWN_GPUS)
    return Cluster(tuple(workers), step.rank, f"Slurm job {step.name}", gpus_shared_out=shared)


def _from_train_job(environment, port) -> Cluster | None:
    """Kubeflow Trainer tells each node the first one's name, as torchrun wants it."""
    if "PET_MASTER_ADDR" not in environment or "PET_NNODES" not in environment:
        return None
    first = environment["PET_MASTER_ADDR"]
    match = re.fullmatch(r"(.+-)0(\..+)", first)
    if match is None:
        raise UserError(
            f"received PET_MASTER_ADDR={first!r}, expected the first node's name, such as "
            "train-node-0-0.train."
        )
    count = _number(environment, "PET_NNODES")
    port = port or _number(environment, "PET_MASTER_PORT", _PORT)
    workers = tuple(f"{match[1]}{i}{match[2]}:{port}" for i in range(count))
    return Cluster(workers, _number(environment, "PET_NODE_RANK"), "a Kubernetes TrainJob")


def _from_indexed_job(environment, port) -> Cluster | None:
    """A pod of an indexed Job knows its own place; how many there are it is told."""
    if WORKERS not in environment or "PMIX_RANK" in environment:
        return None
    count, index = _number(environment, WORKERS), _number(environment, "JOB_COMPLETION_INDEX")
    name, service = environment.get("HOSTNAME", ""), environment.get(SERVICE, "")
    job = name.removesuffix(f"-{index}")
    if not service or job == name:
        raise UserError(
            f"received {WORKERS}={count} with {SERVICE}={service!r} and HOSTNAME={name!r}, "
            f"expected the name of the headless service and of a pod that ends in -{index} "
            "(docs/cluster.md has a Job to copy)."
        )
    workers = tuple(f"{job}-{i}.{service}:{port or _PORT}" for i in range(count))
    return Cluster(workers, index, f"the Kubernetes Job {job}")


def _from_mpi(environment, port) -> Cluster | None:
    present = [
        name for name, (rank, size, *_) in _MPI.items() if {rank, size} <= set(environment)
    ]
    if not present:
        return None
    source = present[0]
    rank, size, local_size = _MPI[source]
    count = _number(environment, size)
    # A rank that does not know its neighbours has its host for itself.
    on_host = _number(environment, local_size, 1)
    hosts = [host.strip() for host in environment.get(HOSTS, "").split(",") if host.strip()]
    if not hosts and on_host == count:
        hosts = ["127.0.0.1"]
    if len(hosts) * on_host != count:
        raise UserError(
            f"received {size}={count} from {source} with {on_host} rank(s) on this host and "
            f"{HOSTS}={environment.get(HOSTS, '')!r}, expected the hosts in the order of the "
            f"ranks, as many ranks on each: mpirun -x {HOSTS}=a,b ..."
        )
    job = next((environment[name] for name in _MPI_JOBS if name in environment), source)
    first = port or job_port(job)
    workers = [f"{host}:{first + place}" for host in hosts for place in range(on_host)]
    return Cluster(tuple(workers), _number(environment, rank), source)


def _number(environment, name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d+", text):
        raise UserError(f"received {name}={text!r}, expected a whole number.")
    return int(text)


def _check_addresses(workers: Sequence[str], source: str) -> None:
    if not workers:
        raise UserError(f"received no workers from {source}, expected at least one.")
    for place, address in enumerate(workers):
        try:
            split_address(address)
        except UserError as error:
            raise UserError(f"{str(error).removesuffix('.')}; it is from {source}.") from None
        if address in workers[:place]:
            raise UserError(
                f"received the address {address} twice from {source} (workers "
                f"{workers.index(address)} and {place}), expected one of its own for each."
            )


def _tf_config_error(received: str) -> UserError:
    return UserError(f"received {received}, expected {_TF_CONFIG_FORM}: mend it or unset it.")


def _range(count: int) -> str:
    return "0" if count == 1 else f"a whole number from 0 to {count - 1}"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
