import pytest

from tfaccel import slurm
from tfaccel.errors import UserError

NEEDS_TENSORFLOW = False


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1,m2", ["n1", "m2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[09-11],m2", ["n09", "n10", "n11", "m2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[1,4-5]-ib", ["n1-ib", "n4-ib", "n5-ib"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a[1,3],b,c[7]", ["a1", "a3", "b", "c7"]),
        ("gpu-node.site.example", ["gpu-node.site.example"]),
    ],
)
def test_node_lists(text, names):
    assert slurm.expand_nodes(text) == names


@pytest.mark.parametrize("text", ["", ",", "n1,", "n[1-3", "n1-3]", "n[]", "n[a-b]", "n[3-1]"])
def test_what_is_no_node_list(text):
    with pytest.raises(UserError, match=r"from Slurm, expected such as n\[09-11\],m2\."):
        slurm.expand_nodes(text)


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])]
)
def test_task_counts(text, counts):
    assert slurm.expand_counts(text) == counts


@pytest.mark.parametrize("text", ["", "2(x)", "2x3", "two", "2(x3),"])
def test_what_is_no_task_count(text):
    with pytest.raises(UserError) as error:
        slurm.expand_counts(text)
    assert str(error.value) == (
        f"received the task counts {text!r} from Slurm, expected such as 2(x3),1."
    )


BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
STEP = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "4",
}


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(BATCH, id="in the batch script"),
        # salloc's shell is a step, too, with a number of its own.
        pytest.param(
            {**BATCH, **STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290"},
            id="in salloc's shell",
        ),
    ],
)
def test_a_forgotten_srun_is_told(environment):
    assert slurm.step(environment) is None
    assert slurm.forgotten_srun(environment) == (
        "Slurm job 7 has 4 tasks, but this process was started without srun, which starts them "
        "all: write srun before python."
    )


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no Slurm"),
        pytest.param({**BATCH, "SLURM_NTASKS": "1"}, id="one task"),
        pytest.param({"SLURM_JOB_ID": "7"}, id="no tasks asked for"),
        pytest.param({**BATCH, **STEP, "SLURM_STEP_ID": "0"}, id="srun"),
    ],
)
def test_nothing_was_forgotten(environment):
    assert slurm.forgotten_srun(environment) == ""


def test_a_step():
    found = slurm.step({**BATCH, **STEP, "SLURM_STEP_ID": "3"})
    assert found == slurm.Step("7.3", ("n1",), (4,), 0)
