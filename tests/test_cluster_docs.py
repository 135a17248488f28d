"""The scripts that docs/cluster.md offers to copy make sense to those who read them."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tfaccel import cluster

NEEDS_TENSORFLOW = False
CARD = (Path(__file__).parents[1] / "docs" / "cluster.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", CARD, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def kubernetes():
    (text,) = blocks("yaml")
    service, job = yaml.safe_load_all(text)
    return service, job


def test_the_job_has_a_headless_service_of_its_pods(kubernetes):
    service, job = kubernetes
    assert (service["kind"], service["apiVersion"]) == ("Service", "v1")
    # As text: null would mean an address of its own.
    assert service["spec"]["clusterIP"] == "None"
    # Kubernetes gives each pod of a Job this label.
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_the_pods_of_the_job_find_each_other(kubernetes):
    _, job = kubernetes
    assert (job["kind"], job["apiVersion"]) == ("Job", "batch/v1")
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    found = []
    for index in range(job["spec"]["completions"]):
        # What Kubernetes itself sets in a pod of an indexed Job.
        own = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"resnet50-{index}"}
        found.append(cluster.discover({**given, **own}))
    workers = ("resnet50-0.resnet50:2222", "resnet50-1.resnet50:2222")
    assert [(c.workers, c.index) for c in found] == [(workers, 0), (workers, 1)]


def test_the_volumes_of_the_job_are_there(kubernetes):
    pod = kubernetes[1]["spec"]["template"]["spec"]
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_the_slurm_script():
    script = next(block for block in blocks("bash") if block.startswith("#!/bin/bash"))
    # Without running it.
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    head, _, body = script.partition("\n\n")
    options = dict(
        re.fullmatch(r"#SBATCH --(.*?)=(.*)", x).groups() for x in head.split("\n")[1:]
    )
    assert options["nodes"] == "2"
    assert options["ntasks-per-node"] == "1"
    # All that sbatch does not hand on: the command itself is started by srun.
    assert re.search(r"^srun .*python -m tfaccel\.train", body, re.MULTILINE)


def test_tf_config_by_hand():
    (text,) = re.findall(r"^TF_CONFIG='(.*?)'", CARD, re.MULTILINE)
    assert cluster.discover({"TF_CONFIG": text}).workers == ("a:2222", "b:2222")
