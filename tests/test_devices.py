import pytest
import tensorflow as tf

from tfaccel import devices, host
from tfaccel.errors import UserError

TOO_LATE = (
    "devices cannot be set up any more: TensorFlow has already started. Call "
    "tfaccel.devices.configure() before any operation, model or dataset is created; in a "
    "notebook, restart the kernel and run it first."
)


class Machine:
    """A machine with GPUs on which TensorFlow has not started; notes what it is told."""

    def __init__(self):
        self.gpus = []
        self.details = {}
        self.visible = None
        self.told = []

    def add_gpus(self, count):
        for index in range(count):
            gpu = tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU")
            self.gpus.append(gpu)
            self.details[gpu] = {"device_name": "NVIDIA A100", "compute_capability": (8, 0)}
        return self.gpus

    def told_about(self, name):
        return [arguments for told, arguments in self.told if told == name]

    def note(self, name):
        return lambda *arguments: self.told.append((name, arguments))

    def present(self, kind):
        return self.gpus if kind == "GPU" else []

    def get_visible(self, kind):
        return self.present(kind) if self.visible is None else self.visible

    def set_visible(self, chosen, kind):
        assert kind == "GPU"
        self.visible = chosen


SETTERS = (
    (tf.config.experimental, "set_memory_growth"),
    (tf.config, "set_logical_device_configuration"),
    (tf.config.threading, "set_intra_op_parallelism_threads"),
    (tf.config.threading, "set_inter_op_parallelism_threads"),
)


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(host, "cpu_count", lambda: 3)
    monkeypatch.setattr(tf.config, "list_physical_devices", machine.present)
    monkeypatch.setattr(tf.config, "get_visible_devices", machine.get_visible)
    monkeypatch.setattr(tf.config, "set_visible_devices", machine.set_visible)
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "get_device_details", machine.details.__getitem__)
    for module, name in SETTERS:
        monkeypatch.setattr(module, name, machine.note(name))
    return machine


@pytest.fixture
def started_machine(machine, monkeypatch):
    """One on which TensorFlow has started: every setting comes too late."""

    def refuse(*arguments):
        raise RuntimeError("cannot be modified after initialization.")

    for module, name in (*SETTERS, (tf.config, "set_visible_devices")):
        monkeypatch.setattr(module, name, refuse)
    return machine


def test_memory_growth_is_set_on_every_gpu(machine):
    first, second = machine.add_gpus(2)
    devices.configure(memory_growth=True)
    assert machine.told_about("set_memory_growth") == [(first, True), (second, True)]
    assert machine.told_about("set_logical_device_configuration") == []


def test_memory_limit_is_set_on_every_gpu(machine):
    first, second = machine.add_gpus(2)
    devices.configure(memory_limit_mb=2048)
    limit = [tf.config.LogicalDeviceConfiguration(memory_limit=2048)]
    told = machine.told_about("set_logical_device_configuration")
    assert told == [(first, limit), (second, limit)]
    assert machine.told_about("set_memory_growth") == []


def test_memory_is_left_alone_unless_asked_for(machine):
    machine.add_gpus(2)
    devices.configure()
    assert machine.told_about("set_memory_growth") == []
    assert machine.told_about("set_logical_device_configuration") == []


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("0", [0]), ("2", [2]), ("0,2", [0, 2]), (" 2, 0 ", [2, 0]), ("none", [])],
)
def test_visible_gpus_are_chosen(machine, visible, indices):
    gpus = machine.add_gpus(3)
    devices.configure(visible=visible)
    assert machine.visible == [gpus[index] for index in indices]


def test_all_gpus_are_visible_unless_asked(machine):
    machine.add_gpus(3)
    devices.configure()
    # Not set at all: another library may have chosen before.
    assert machine.visible is None


def test_memory_is_set_on_the_visible_gpus_only(machine):
    _, second = machine.add_gpus(2)
    devices.configure(visible="1", memory_growth=True)
    assert machine.told_about("set_memory_growth") == [(second, True)]


@pytest.mark.parametrize(("count", "visible"), [(0, "0"), (2, "2"), (2, "0,5")])
def test_an_index_out_of_range_tells_how_many_gpus_there_are(machine, count, visible):
    machine.add_gpus(count)
    with pytest.raises(UserError) as error:
        devices.configure(visible=visible)
    assert str(error.value).startswith(
        f"received devices.visible={visible!r}, but this machine has {count} GPU(s): "
    )


@pytest.mark.parametrize("visible", ["", "first", "-1", "0;1", "0,", "1.0"])
def test_what_is_no_index_is_refused(machine, visible):
    machine.add_gpus(2)
    with pytest.raises(UserError) as error:
        devices.configure(visible=visible)
    assert str(error.value) == (
        f"received devices.visible={visible!r}, expected 'all', 'none' or GPU indices such "
        "as '0,2'."
    )


def test_growth_with_a_limit_is_refused_before_anything_is_set(machine):
    machine.add_gpus(1)
    with pytest.raises(UserError, match="memory_limit_mb=100, expected one of them"):
        devices.configure(memory_growth=True, memory_limit_mb=100)
    assert machine.told == []


@pytest.mark.parametrize(
    ("arguments", "intra_op", "inter_op"),
    [
        # The machine may have 64 CPUs, of which the container grants 3.
        ({}, 3, 3),
        ({"intra_op_threads": 8}, 8, 3),
        ({"inter_op_threads": 1}, 3, 1),
        ({"intra_op_threads": 8, "inter_op_threads": 2}, 8, 2),
    ],
)
def test_threads(machine, arguments, intra_op, inter_op):
    devices.configure(**arguments)
    assert machine.told_about("set_intra_op_parallelism_threads") == [(intra_op,)]
    assert machine.told_about("set_inter_op_parallelism_threads") == [(inter_op,)]


@pytest.mark.parametrize(
    ("count", "arguments", "lines"),
    [
        (0, {}, ["devices: no GPU; 3 CPU(s)"]),
        (2, {}, ["devices: 2 GPU(s): NVIDIA A100, NVIDIA A100, memory taken whole; 3 CPU(s)"]),
        (2, {"visible": "none"}, ["devices: no GPU; 3 CPU(s)"]),
        (1, {"memory_growth": True},
         ["devices: 1 GPU(s): NVIDIA A100, memory grows as needed; 3 CPU(s)"]),
        (1, {"memory_limit_mb": 2048},
         ["devices: 1 GPU(s): NVIDIA A100, memory 2048 MB each; 3 CPU(s)"]),
        # An explicit request is never silently dropped.
        (0, {"memory_growth": True},
         ["devices: no GPU; 3 CPU(s)",
          "devices: a GPU memory setting was given, but there is no GPU"]),
        (0, {"memory_limit_mb": 2048},
         ["devices: no GPU; 3 CPU(s)",
          "devices: a GPU memory setting was given, but there is no GPU"]),
    ],
)  # fmt: skip
def test_the_choice_is_logged(machine, log, count, arguments, lines):
    machine.add_gpus(count)
    devices.configure(**arguments)
    assert log.messages == lines


@pytest.mark.parametrize(
    "arguments", [{}, {"memory_growth": True}, {"memory_limit_mb": 9}, {"visible": "0"}]
)
def test_too_late_is_a_warning(started_machine, log, arguments):
    started_machine.add_gpus(1)
    devices.configure(**arguments)
    warnings = [r.getMessage() for r in log.records if r.levelname == "WARNING"]
    assert warnings == [f"{TOO_LATE} Going on with the settings in force."]


def test_too_late_does_not_claim_what_did_not_happen(started_machine, log):
    started_machine.add_gpus(1)
    devices.configure(memory_growth=True)
    assert "memory grows as needed" not in log.text


def test_too_late_is_an_error_if_strict(started_machine):
    started_machine.add_gpus(1)
    with pytest.raises(UserError) as error:
        devices.configure(memory_growth=True, strict=True)
    assert str(error.value) == TOO_LATE


def test_gpus(machine):
    first, second = machine.add_gpus(2)
    # An AMD GPU, or a driver that does not tell.
    machine.details[second] = {}
    assert devices.gpus() == [
        devices.Gpu("NVIDIA A100", (8, 0)),
        devices.Gpu(second.name, None),
    ]
    machine.visible = [first]
    assert devices.gpus() == [devices.Gpu("NVIDIA A100", (8, 0))]


def test_describe_is_the_host_and_its_gpus(machine):
    machine.add_gpus(2)
    described = devices.describe()
    assert described["gpus"] == ["NVIDIA A100", "NVIDIA A100"]
    assert described["cpus"] == 3
    assert sorted(described) == ["cpus", "gpus", "memory_gib", "processor", "system"]


COMPILE = """
import sys
from pathlib import Path
import tensorflow as tf
from tfaccel import devices
devices.configure(compile_cache=sys.argv[1])
tf.function(lambda x: tf.tanh(x) * 2, jit_compile=True)(tf.ones(8))
print(sorted(path.suffix for path in Path(sys.argv[1]).iterdir()))
"""


def test_xla_keeps_what_it_compiled(fresh_python, tmp_path):
    done = fresh_python("-c", COMPILE, tmp_path / "cache", cwd=tmp_path)
    assert done.stdout.strip() == "['.pb']", done.stderr


def test_a_file_is_no_folder_for_compiled_programs(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(UserError, match="which is a file, expected a folder"):
        devices.configure(compile_cache=str(path))
