import pytest
import tensorflow as tf

from tfaccel import gpu_share
from tfaccel.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        ({"count": 4, "asked": 0}, [0, 1, 2, 3]),
        ({"count": 4, "asked": 3}, [0, 1, 2]),
        ({"count": 0, "asked": 0}, []),
        ({"count": 4, "asked": 0, "place": 1, "neighbours": 2}, [2, 3]),
        ({"count": 4, "asked": 1, "place": 1, "neighbours": 2}, [2]),
        ({"count": 5, "asked": 0, "place": 1, "neighbours": 2}, [2, 3]),
        ({"count": 1, "asked": 0, "place": 1, "neighbours": 2, "shared_out": True}, [0]),
        ({"count": 0, "asked": 0, "place": 1, "neighbours": 2}, []),
    ],
)
def test_gpus_are_shared_out_among_the_workers_of_a_host(arguments, share):
    assert list(gpu_share.share(**arguments)) == share


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"count": 2, "asked": 4},
            "received distribution.gpus=4, but there are 2 (2 visible): ask for fewer, or make "
            "more visible (devices.visible, CUDA_VISIBLE_DEVICES).",
        ),
        (
            {"count": 4, "asked": 4, "neighbours": 2},
            "received distribution.gpus=4, but there are 2 for each of 2 workers (4 visible): "
            "ask for fewer, or make more visible (devices.visible, CUDA_VISIBLE_DEVICES).",
        ),
        (
            {"count": 1, "asked": 0, "neighbours": 2},
            "this host has 1 GPU(s) for 2 workers: start one worker a GPU, or train on CPUs "
            "with devices.visible=none.",
        ),
    ],
)
def test_fewer_gpus_than_needed(arguments, message):
    with pytest.raises(UserError) as error:
        gpu_share.share(**arguments)
    assert str(error.value) == message


@pytest.fixture
def visible(monkeypatch):
    """A host with four GPUs; notes which are left visible."""
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(4)]
    state = {"gpus": gpus}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: state["gpus"])
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda chosen, kind: state.update(gpus=chosen)
    )
    return state


@pytest.mark.parametrize(
    ("place", "neighbours", "shared_out", "left"),
    [(0, 1, False, "0123"), (1, 2, False, "23"), (1, 2, True, "0123"), (3, 4, False, "3")],
)
def test_a_worker_sees_its_own_gpus_only(visible, place, neighbours, shared_out, left):
    count = gpu_share.take(0, place, neighbours, shared_out=shared_out)
    assert "".join(gpu.name[-1] for gpu in visible["gpus"]) == left
    assert count == len(left)


def test_one_gpu_that_somebody_chose_is_the_workers_own(visible, monkeypatch):
    visible["gpus"] = visible["gpus"][:1]
    with pytest.raises(UserError, match="this host has 1 GPU"):
        gpu_share.take(0, 1, 2, shared_out=False)
    # As Slurm with --gpus-per-task does.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu_share.take(0, 1, 2, shared_out=False) == 1
