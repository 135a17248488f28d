"""configs/cifar10_vgg16_transfer.py, from weights that are placed by hand."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest

from tfaccel import assembly, host, train
from tfaccel import config as config_lib
from tfaccel.data import sources
from tfaccel.errors import UserError

CONFIG = Path(__file__).parents[1] / "configs" / "cifar10_vgg16_transfer.py"
FILE = "vgg16_weights_tf_dim_ordering_tf_kernels_notop.h5"


def offline():
    raise OSError("no network")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The recipe on a few made-up images; Keras's folder is empty, the network away."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(host, "check_network", offline)
    spec = importlib.util.spec_from_file_location("recipe", CONFIG)
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    config = recipe.get_config("runlocal")
    config.data.name = "synthetic"
    config.data.num_examples = 60
    config.duration = "2st"
    config.global_batch_size = 8
    config_lib.check(config)
    return config


@pytest.fixture
def placed(tmp_path):
    """VGG-16 without its top, whose weights are placed where Keras keeps them."""
    keras.utils.set_random_seed(7)
    network = keras.applications.VGG16(weights=None, include_top=False)
    path = tmp_path / "keras" / "models" / FILE
    path.parent.mkdir(parents=True)
    network.save_weights(path.with_name("made.weights.h5"))
    path.with_name("made.weights.h5").rename(path)
    return network


def test_runs_from_weights_placed_by_hand(config, placed, tmp_path, log):
    report = train.train(config, tmp_path / "run")
    assert report["steps"] == 2
    model = keras.models.load_model(tmp_path / "run" / "model.keras")
    sizes = [layer.units for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    assert sizes == [128, 10]
    assert isinstance(model.layers[-3], keras.layers.GlobalAveragePooling2D)
    base = model.get_weights()[:-4]
    for got, want in zip(base, placed.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    (warning,) = [m for m in log.messages if "not the file that Keras publishes" in m]
    assert FILE in warning
    # The two Dense layers alone are trained.
    assert len(model.trainable_variables) == 4


def test_images_are_fed_as_the_weights_were_trained(config):
    splits = sources.load(**config_lib.arguments(sources.load, config.data))
    training, *_ = assembly.build_data(config, splits, 0)
    pixel = training.normalize(np.uint8([[[[255, 0, 128]]]]))
    # Blue, green, red, less the means of ImageNet (103.939, 116.779, 123.68).
    np.testing.assert_allclose(pixel[0, 0, 0], [24.061, -116.779, 131.32], rtol=1e-6)


def test_without_weights_the_file_is_named_and_nothing_left_behind(config, tmp_path):
    with pytest.raises(UserError) as error:
        train.train(config, tmp_path / "run")
    message = str(error.value)
    assert f"place {FILE} " in message
    assert str(tmp_path / "keras" / "models") in message
    assert "--config.model.weights=None" in message
    assert not (tmp_path / "run").exists()


def test_the_head_follows_the_textbook(config):
    optimizer = (config.optimizer.name, config.optimizer.learning_rate, config.schedule.name)
    assert optimizer == ("adam", 1e-3, "constant")
    assert (config.model.head, config.model.hidden_units) == ("pooled", 128)
