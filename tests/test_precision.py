import keras
import pytest

from tfaccel import devices, precision
from tfaccel.devices import Gpu
from tfaccel.errors import UserError


@pytest.fixture
def with_gpus(monkeypatch):
    def use(*capabilities):
        gpus = [Gpu(f"GPU {index}", found) for index, found in enumerate(capabilities)]
        monkeypatch.setattr(devices, "gpus", lambda: gpus)

    return use


@pytest.mark.parametrize(
    ("capabilities", "policy", "reason"),
    [
        ([(8, 0)], "mixed_bfloat16", "GPU 0 has compute capability 8.0"),
        ([(8, 9)], "mixed_bfloat16", "GPU 0 has compute capability 8.9"),
        ([(9, 0)], "mixed_bfloat16", "GPU 0 has compute capability 9.0"),
        ([(10, 0)], "mixed_bfloat16", "GPU 0 has compute capability 10.0"),
        ([(7, 0)], "mixed_float16", "GPU 0 has compute capability 7.0"),
        ([(7, 5)], "mixed_float16", "GPU 0 has compute capability 7.5"),
        ([(6, 1)], "float32", "GPU 0 has compute capability 6.1, before tensor cores"),
        ([], "float32", "no GPU"),
        # Every replica runs the same program: the oldest decides.
        ([(8, 0), (7, 0)], "mixed_float16", "GPU 1 has compute capability 7.0"),
        ([(7, 0), (8, 0)], "mixed_float16", "GPU 0 has compute capability 7.0"),
        ([(9, 0), (10, 0)], "mixed_bfloat16", "GPU 0 has compute capability 9.0"),
        ([(8, 0), None], "float32", "compute capability of GPU 1 is unknown"),
        ([None], "float32", "compute capability of GPU 0 is unknown"),
    ],
)
def test_auto_asks_the_gpus_and_says_why(capabilities, policy, reason, with_gpus, log):
    with_gpus(*capabilities)
    built = precision.build()
    assert isinstance(built, keras.DTypePolicy)
    assert built.name == policy
    assert log.messages == [f"precision: {policy} (auto: {reason})"]


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("capability", [(9, 0), (6, 1)])
def test_what_is_asked_for_is_never_changed(name, capability, with_gpus, log):
    with_gpus(capability)
    assert precision.build(precision=name).name == name
    assert log.messages == [f"precision: {name} (as asked)"]


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError) as error:
        precision.build(precision="bfloat16")
    assert str(error.value).startswith(
        "received precision='bfloat16', expected one of auto, float32, mixed_bfloat16, "
        "mixed_float16."
    )


def test_build_leaves_the_global_policy_alone():
    precision.build(precision="mixed_bfloat16")
    assert keras.config.dtype_policy().name == "float32"


def test_layers_made_in_the_scope_follow_the_policy():
    with precision.scope(precision.build(precision="mixed_bfloat16")):
        inside = keras.layers.Dense(1)
    outside = keras.layers.Dense(1)
    assert (inside.compute_dtype, inside.variable_dtype) == ("bfloat16", "float32")
    assert (outside.compute_dtype, outside.variable_dtype) == ("float32", "float32")


@pytest.mark.parametrize("before", ["float32", "float16"])
def test_scope_puts_the_old_policy_back(before):
    keras.config.set_dtype_policy(before)
    with precision.scope(keras.DTypePolicy("mixed_float16")):
        assert keras.config.dtype_policy().name == "mixed_float16"
    assert keras.config.dtype_policy().name == before


def test_scope_puts_the_old_policy_back_after_an_exception():
    keras.config.set_dtype_policy("float16")
    with (
        pytest.raises(ZeroDivisionError),
        precision.scope(keras.DTypePolicy("mixed_bfloat16")),
    ):
        raise ZeroDivisionError
    assert keras.config.dtype_policy().name == "float16"


def test_scopes_nest():
    names = []
    with precision.scope(keras.DTypePolicy("mixed_float16")):
        with precision.scope(keras.DTypePolicy("mixed_bfloat16")):
            names.append(keras.config.dtype_policy().name)
        names.append(keras.config.dtype_policy().name)
    names.append(keras.config.dtype_policy().name)
    assert names == ["mixed_bfloat16", "mixed_float16", "float32"]
