import sys

import keras
import numpy as np
import pytest

from tfaccel import precision
from tfaccel.errors import UserError
from tfaccel.models import registry

SHAPE = (8, 8, 3)
NET = """
import keras

def net(*, input_shape, num_classes, units=4, softmax=False):
    x = inputs = keras.Input(input_shape)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(units)(x)
    x = keras.layers.Dense(num_classes, activation="softmax" if softmax else None)(x)
    return keras.Model(inputs, x)
"""


def refused(match, function, *args, **kwargs):
    """Asserts a UserError of one line."""
    with pytest.raises(UserError, match=match) as error:
        function(*args, **kwargs)
    assert "\n" not in str(error.value)


def small(**kwargs):
    return registry.build(SHAPE, 10, name="resnet9", **{"arguments": {"width": 2}, **kwargs})


def images(size=8):
    return np.random.default_rng(0).random((2, size, size, 3), dtype=np.float32)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module to the working folder, as a user would; forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())

    def write(source, path="my_net.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source)

    return write


# Names.


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("resnet5", "resnet50"),
        ("resnet_9", "resnet9"),
        ("mobilenetv2", "MobileNetV2"),
        ("VGG11", "VGG19 or vgg16"),
        ("EficientNetB0", "EfficientNetB0"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name, nearest):
    refused(
        rf"model\.name={name}, expected .*Did you mean (.* or )?{nearest}\b",
        registry.build,
        SHAPE,
        10,
        name=name,
    )


def test_name_like_no_other_is_answered_with_all_applications():
    refused(
        r"model\.name=qqq, .*keras\.applications has ConvNeXtBase, .*Xception\.",
        registry.build,
        SHAPE,
        10,
        name="qqq",
    )


def test_first_of_the_names_is_the_default():
    assert registry.build(SHAPE, 10, arguments={"width": 2}).name == "resnet9"


# keras.applications.


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_application_gives_float32_logits(policy):
    with precision.scope(keras.DTypePolicy(policy)):
        model = registry.build((32, 32, 3), 7, name="MobileNetV2", arguments={"alpha": 0.35})
    assert model.output_shape == (None, 7)
    assert model.output.dtype == "float32"
    assert not registry.gives_probabilities(model)


def test_application_leaves_scaling_to_the_data():
    model = registry.build((32, 32, 3), 10, name="MobileNetV3Small")
    assert not [x for x in model.layers[:3] if isinstance(x, keras.layers.Rescaling)]
    arguments = {"include_preprocessing": True}
    model = registry.build((32, 32, 3), 10, name="MobileNetV3Small", arguments=arguments)
    assert [x for x in model.layers[:3] if isinstance(x, keras.layers.Rescaling)]


def test_application_starts_from_random_weights_as_keras_draws_them():
    keras.utils.set_random_seed(0)
    ours = registry.build((32, 32, 3), 10, name="MobileNet", arguments={"alpha": 0.25})
    keras.utils.set_random_seed(0)
    stock = keras.applications.MobileNet(
        input_shape=(32, 32, 3), alpha=0.25, weights=None, classes=10
    )
    for one, other in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_application_can_be_asked_for_probabilities():
    arguments = {"alpha": 0.25, "classifier_activation": "softmax"}
    model = registry.build((32, 32, 3), 10, name="MobileNet", arguments=arguments)
    assert registry.gives_probabilities(model)
    # Ten float32 numbers, each rounded once.
    np.testing.assert_allclose(model(images(32)).numpy().sum(axis=1), 1, rtol=1e-6)


def test_image_too_small_for_an_application_is_refused():
    refused(
        "model.name=MobileNetV2 cannot be built for images of 16x16x3: .*at least 32x32",
        registry.build,
        (16, 16, 3),
        10,
        name="MobileNetV2",
    )


def test_image_too_small_for_one_of_our_own_is_refused():
    refused(
        "model.name=vgg16 cannot be built for images of 16x16x3",
        registry.build,
        (16, 16, 3),
        10,
        name="vgg16",
    )


# The user's function.


def test_function_in_the_working_folder(write):
    write(NET)
    model = registry.build(SHAPE, 10, name="my_net:net", arguments={"units": 5})
    assert model.input_shape == (None, *SHAPE)
    assert model.output_shape == (None, 10)
    assert model.count_params() == (8 * 8 * 3 + 1) * 5 + (5 + 1) * 10


def test_function_in_a_package(write):
    write("", "my_package/__init__.py")
    write(NET, "my_package/nets.py")
    model = registry.build(SHAPE, 10, name="my_package.nets:net")
    assert model.output_shape == (None, 10)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("softmax", [False, True])
def test_function_gets_float32_outputs_without_asking(write, policy, softmax):
    write(NET)
    with precision.scope(keras.DTypePolicy(policy)):
        arguments = {"softmax": softmax}
        model = registry.build(SHAPE, 10, name="my_net:net", arguments=arguments)
    assert model.output.dtype == "float32"
    assert model.output_shape == (None, 10)
    assert registry.gives_probabilities(model) == softmax
    assert model(images()).dtype == "float32"


def test_model_that_is_float32_already_is_left_alone(write):
    write(
        NET.replace(
            "    return keras.Model(inputs, x)",
            "    net.made = keras.Model(inputs, x)\n    return net.made",
        )
    )
    model = registry.build(SHAPE, 10, name="my_net:net")
    assert model is sys.modules["my_net"].net.made


def test_function_may_take_any_argument(write):
    write(NET + "def free(**kwargs):\n    return net(units=kwargs.pop('width'), **kwargs)\n")
    model = registry.build(SHAPE, 10, name="my_net:free", arguments={"width": 3})
    assert model.count_params() == (8 * 8 * 3 + 1) * 3 + (3 + 1) * 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_nte:net", "no module 'my_nte' in this folder or installed"),
        ("my_net.deeper:net", "no module 'my_net.deeper'"),
        ("my_net:nte", "my_net has no function 'nte'. Did you mean net?"),
        ("my_net:", "expected 'module:function'"),
        (":net", "expected 'module:function'"),
        (".my_net:net", "expected 'module:function'"),
        ("my_net:keras", "my_net has no function 'keras'"),
    ],
)
def test_function_that_is_not_there_is_refused(write, name, message):
    write(NET)
    refused(f"model.name={name}, .*{message}", registry.build, SHAPE, 10, name=name)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "returned int, expected a keras.Model"),
        ("return None", "returned NoneType, expected a keras.Model"),
        (
            "return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten()])",
            r"has outputs of shape \(None, 192\), expected \(None, 10\)",
        ),
        (
            "return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(10)])",
            r"has outputs of shape \(None, 8, 8, 10\), expected \(None, 10\)",
        ),
        (
            "x = keras.Input(input_shape)\n    return keras.Model(x, [x, x])",
            r"has outputs of shape \(None, 8, 8, 3\), \(None, 8, 8, 3\), expected \(None, 10\)",
        ),
        (
            "return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])",
            r"returned a model that is not built: build it from keras\.Input",
        ),
    ],
    ids=[
        "a number",
        "nothing",
        "too many numbers",
        "an image of numbers",
        "two outputs",
        "not built",
    ],
)
def test_what_is_no_classifier_is_refused(write, body, message):
    write(f"import keras\n\ndef net(*, input_shape, num_classes):\n    {body}\n")
    refused(f"model.name=my_net:net {message}", registry.build, SHAPE, 10, name="my_net:net")


@pytest.mark.parametrize(
    "error", ["ValueError('mine')", "TypeError('mine')", "KeyError('mine')"]
)
def test_mistake_inside_the_users_function_keeps_its_traceback(write, error):
    write(f"def net(*, input_shape, num_classes):\n    raise {error}\n")
    with pytest.raises((ValueError, TypeError, KeyError), match="mine") as caught:
        registry.build(SHAPE, 10, name="my_net:net")
    assert not isinstance(caught.value, UserError)


def test_missing_import_inside_the_users_module_keeps_its_traceback(write):
    write("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        registry.build(SHAPE, 10, name="my_net:net")


# Arguments.


@pytest.mark.parametrize(
    ("name", "argument", "nearest"),
    [
        ("resnet9", "widht", "width"),
        ("MobileNetV2", "alhpa", "alpha"),
        ("my_net:net", "unit", "units"),
    ],
)
def test_unknown_argument_is_refused_with_the_nearest(write, name, argument, nearest):
    write(NET)
    refused(
        rf"model\.arguments\.{argument}, which {name} does not take.*Did you mean {nearest}\?",
        registry.build,
        SHAPE,
        10,
        name=name,
        arguments={argument: 3},
    )


def test_arguments_are_not_changed():
    arguments = {"width": 2}
    small(arguments=arguments)
    assert arguments == {"width": 2}


# Weights.


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_weights_are_taken_from_a_file(tmp_path, suffix):
    trained, path = small(), str(tmp_path / f"model{suffix}")
    trained.set_weights([w + i for i, w in enumerate(trained.get_weights())])
    (trained.save if suffix == ".keras" else trained.save_weights)(path)
    for one, other in zip(
        small(weights=path).get_weights(), trained.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_weights_saved_in_float32_serve_a_mixed_policy(tmp_path, suffix):
    # Under bfloat16 an application gets one more layer, the cast of its outputs.
    def mobile_net(**kwargs):
        arguments = {"alpha": 0.25}
        return registry.build((32, 32, 3), 10, name="MobileNet", arguments=arguments, **kwargs)

    trained, path = mobile_net(), str(tmp_path / f"model{suffix}")
    (trained.save if suffix == ".keras" else trained.save_weights)(path)
    with precision.scope(keras.DTypePolicy("mixed_bfloat16")):
        model = mobile_net(weights=path)
    for one, other in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
@pytest.mark.parametrize("other", [{"width": 4}, None], ids=["wider model", "no model"])
def test_weights_that_do_not_fit_are_refused(tmp_path, suffix, other):
    path = tmp_path / f"model{suffix}"
    if other is None:
        path.write_bytes(b"no weights")
    else:
        model = small(arguments=other)
        (model.save if suffix == ".keras" else model.save_weights)(path)
    refused(
        rf"model\.weights=.*model{suffix}, which does not fit this model: ",
        small,
        weights=str(path),
    )


@pytest.mark.parametrize("name", ["absent.weights.h5", "absent.keras", "."])
@pytest.mark.parametrize("function", ["build", "check"])
def test_absent_weights_are_refused(tmp_path, name, function):
    path = str(tmp_path / name)
    match = "model.weights=.*, expected the path of an existing .weights.h5 or .keras file"
    if function == "build":
        refused(match, small, weights=path)
    else:
        refused(match, registry.check, name="resnet9", weights=path, arguments={})


# Logits or probabilities.


def dense(activation=None):
    return keras.layers.Dense(3, activation=activation)


def sequential(*layers):
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: [dense()], False),
        (lambda: [dense("softmax")], True),
        (lambda: [dense(), keras.layers.Softmax()], True),
        (lambda: [dense(), keras.layers.Activation("softmax")], True),
        (lambda: [dense("softmax"), keras.layers.Activation("linear")], True),
        (lambda: [dense(), keras.layers.Softmax(), keras.layers.Activation("linear")], True),
        (lambda: [dense(), keras.layers.Activation("linear")], False),
        (lambda: [dense(), keras.layers.Rescaling(0.125)], False),
        (lambda: [dense("softmax"), dense()], False),
        (lambda: [dense("relu")], False),
        (lambda: [sequential(dense("softmax"))], True),
        (lambda: [sequential(dense())], False),
        (lambda: [sequential(sequential(dense(), keras.layers.Softmax()))], True),
        (lambda: [sequential(dense("softmax")), keras.layers.Activation("linear")], True),
    ],
    ids=[
        "logits",
        "softmax Dense",
        "Softmax layer",
        "softmax Activation",
        "softmax Dense, then a cast",
        "Softmax layer, then a cast",
        "logits, then a cast",
        "scaled logits",
        "softmax inside",
        "relu",
        "nested softmax",
        "nested logits",
        "nested twice",
        "nested softmax, then a cast",
    ],
)
def test_gives_probabilities(make, expected):
    assert registry.gives_probabilities(sequential(*make())) is expected
    # The same layers as a functional model.
    x = inputs = keras.Input((4,))
    for layer in make():
        x = layer(x)
    assert registry.gives_probabilities(keras.Model(inputs, x)) is expected
