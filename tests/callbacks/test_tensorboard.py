"""Summaries, ImageGrid and Profiler: what TensorBoard gets to see."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from both import LENGTH, both, ours

from tfaccel import callbacks, event_files, loop
from tfaccel.callbacks import image_grid, tensorboard
from tfaccel.checkpoint import Checkpointer
from tfaccel.errors import UserError
from tfaccel.event_files import EventLog


def events_of(folder):
    """(tag, step, value) of all in a folder's event files: a number or a picture."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                content = value.simple_value
                if value.HasField("image"):
                    content = tf.io.decode_png(value.image.encoded_image_string).numpy()
                found.append((value.tag, event.step, content))
    return found


def curve(folder, tag):
    return [(step, value) for name, step, value in events_of(folder) if name == tag]


def pictures(folder, tag):
    return [value for name, _, value in events_of(folder) if name == tag]


@both
def test_curves_share_names_and_the_axis_of_steps(fit, tmp_path):
    rate = callbacks.LearningRateLogger()
    throughput = callbacks.Throughput(8)
    summaries = callbacks.Summaries(tmp_path, measurements=[rate, throughput])
    history = fit(tiny.model(), [rate, throughput, summaries]).history
    for part, prefix in (("train", ""), ("validation", "val_")):
        for name in ("loss", "accuracy"):
            steps, values = zip(*curve(tmp_path / part, name), strict=True)
            assert steps == (4, 8)
            # Stored as float32.
            assert values == pytest.approx(history[prefix + name], rel=1e-6)
    rates = dict(curve(tmp_path / "train", "learning_rate"))
    assert rates == pytest.approx({4: 0.05, 8: 0.05})
    assert curve(tmp_path / "train", "images_per_second")[-1][0] == 8


def test_settings_stand_on_the_hparams_page(tmp_path):
    from tensorboard.plugins.hparams import plugin_data_pb2

    settings = {"rate": 0.5, "name": "sgd", "weights": None}
    ours(tiny.model(), [callbacks.Summaries(tmp_path, hyperparameters=settings)])
    (path,) = (tmp_path / "train").glob("events.out.tfevents.*")
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            if value.tag == "_hparams_/session_start_info":
                content = value.metadata.plugin_data.content
                data = plugin_data_pb2.HParamsPluginData.FromString(content)
                found = data.session_start_info.hparams
    assert found["rate"].number_value == 0.5
    assert (found["name"].string_value, found["weights"].string_value) == ("sgd", "None")


@pytest.mark.parametrize("stop_at", [5, 6, 7])
def test_a_restart_drops_nothing_and_doubles_nothing(stop_at, tmp_path):
    from test_loop import Kill

    def run(folder, *kill):
        saving = Checkpointer(folder / "checkpoints", LENGTH, every="3st")
        newest = saving.newest()
        first = saving.read_state(newest)["step"] if newest else 0
        log = EventLog(folder / "events")
        added = [
            callbacks.Summaries(log, every=2, first_step=first, hyperparameters={"rate": 0.05}),
            callbacks.ImageGrid(log, inputs=np.zeros((2, 8, 8, 3)), first_step=first),
        ]
        ours(tiny.model(), [*added, *kill], checkpointer=saving)

    def all_of(folder):
        parts = ("train", "validation")
        values = [
            (part, tag, step, np.asarray(value).tolist())
            for part in parts
            for tag, step, value in events_of(folder / "events" / part)
            if not tag.startswith("_hparams_")  # holds the time of day
        ]
        return sorted(values, key=lambda v: v[:3])

    run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", Kill(stop_at))
    run(tmp_path / "parts")
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")
    tags = [event[0] for event in events_of(tmp_path / "parts" / "events" / "train")]
    assert len([tag for tag in tags if tag.startswith("_hparams_")]) == 1
    assert len(list((tmp_path / "parts" / "events" / "train").iterdir())) == 2


def test_half_an_event_at_the_end_of_a_file_is_dropped(tmp_path):
    log = EventLog(tmp_path)
    log.start(0)
    for step in (1, 2, 3):
        log.scalars("train", {"loss": float(step)}, step)
    (path,) = (tmp_path / "train").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert EventLog(tmp_path).start(1) == {"train": {1}}
    assert curve(tmp_path / "train", "loss") == [(1, 1.0)]


def test_a_run_from_the_start_takes_the_place_of_an_old_one(tmp_path):
    for part in ("train", "another"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "events.out.tfevents.1.old").write_bytes(b"")
    ours(tiny.model(), [callbacks.Summaries(tmp_path)])
    assert [step for step, _ in curve(tmp_path / "train", "loss")] == [4, 8]
    assert len(list((tmp_path / "train").iterdir())) == 1
    # What is not ours stays.
    assert len(list((tmp_path / "another").iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path, log):
    (tmp_path / "events").write_text("a file")
    events = EventLog(tmp_path / "events")
    added = [
        callbacks.Summaries(events, every=1),
        callbacks.ImageGrid(events, inputs=np.zeros((2, 8, 8, 3))),
    ]
    assert ours(tiny.model(), added).epoch == [0, 1]
    ours_alone = [record for record in log.records if record.name == "tfaccel"]
    warnings = [r.getMessage() for r in ours_alone if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"TensorBoard's folder {tmp_path / 'events'} cannot be ")
    assert warnings[0].endswith("training goes on without it.")


@both
def test_pictures_of_inputs_and_of_the_worst_mistakes(fit, tmp_path):
    source = tiny.source(count=16, seed=1)
    examples = source.images / np.float32(255), source.labels
    added = [
        callbacks.ImageGrid(
            tmp_path, inputs=lambda: source.images[:5], examples=examples, columns=3
        )
    ]
    model = tiny.model()
    fit(model, added)
    (seen,) = pictures(tmp_path / "train", "inputs")
    assert seen.shape == (2 * 9 - 1, 3 * 9 - 1, 3)
    np.testing.assert_array_equal(seen[:8, :8], source.images[0])
    np.testing.assert_array_equal(seen[9:, 9:17], source.images[4])
    steps = [step for tag, step, _ in events_of(tmp_path / "train") if tag == "worst_mistakes"]
    assert steps == [4, 8]
    # The last of them is of the model as it is now: the most certain mistake.
    outputs = np.array(model(examples[0], training=False))
    wrong = outputs.argmax(1) != source.labels
    worst = np.argmax(np.where(wrong, outputs.max(1), -np.inf))
    shown = pictures(tmp_path / "train", "worst_mistakes")[-1][:8, :8]
    # Stretched from the smallest to the greatest of those shown, which is 0 to 255 nearly.
    np.testing.assert_allclose(shown, source.images[worst], atol=3)


def test_a_grid_of_fewer_images_than_columns():
    assert image_grid.grid(np.zeros((2, 4, 6, 1), np.uint8), columns=8).shape == (4, 13, 1)


def test_other_numbers_are_stretched_to_what_a_screen_shows():
    images = np.array([-1.0, 0.0, 1.0, 1.0]).reshape(1, 2, 2, 1)
    assert image_grid.grid(images, 1).ravel().tolist() == [0, 128, 255, 255]


@both
def test_a_trace_of_the_steps_that_were_asked_for(fit, tmp_path, log, monkeypatch):
    monkeypatch.setattr(loop, "_CALL_SECONDS", 1e9)
    fit(tiny.model(), [callbacks.Profiler(tmp_path, 2, 5)])
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
    assert f"profile: steps 2:5 in {tmp_path}" in log.messages


def test_a_range_that_is_never_reached_is_said_at_the_end(tmp_path, log):
    ours(tiny.model(), [callbacks.Profiler(tmp_path, 10, 20)])
    assert log.messages[-1] == (
        "profile: steps 10:20 were not reached: this start ended at step 8"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_range_that_ends_after_the_run_is_a_trace_up_to_its_end(tmp_path, log):
    ours(tiny.model(), [callbacks.Profiler(tmp_path, 6, 20)])
    assert f"profile: steps 6:8 in {tmp_path}" in log.messages


def test_steps_from_the_command_line():
    assert tensorboard.profile_steps("10:20") == (10, 20)


@pytest.mark.parametrize(
    "text", ["", "10", "10:", ":20", "20:10", "10:10", "a:b", "-1:5", "1:2:3"]
)
def test_a_malformed_range_is_refused(text):
    with pytest.raises(UserError, match=f"received --profile_steps={text}, expected the first"):
        tensorboard.profile_steps(text)


def build(path, **kwargs):
    return tensorboard.build(path, LENGTH, **kwargs)


def test_auto_is_on_where_tensorboard_is_installed(tmp_path, log):
    choice = build(tmp_path / "events", gradient_norms="50%")
    assert choice.log.directory == tmp_path / "events"
    assert (choice.images, choice.gradient_norms) == (True, 4)
    assert log.messages == [
        f"tensorboard: on (auto: it is installed): tensorboard --logdir={tmp_path / 'events'}"
    ]


def test_auto_is_off_where_it_is_not(tmp_path, log, monkeypatch):
    monkeypatch.setattr(tensorboard, "available", lambda: False)
    assert build(tmp_path).log is None
    assert log.messages == ["tensorboard: off (auto: not installed; tfaccel[tensorboard])"]


def test_asking_for_it_where_it_is_not_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "available", lambda: False)
    with pytest.raises(UserError, match=r"pip install 'tfaccel\[tensorboard\]'"):
        build(tmp_path, enabled=True)


def test_off_is_off_and_gradients_without_it_are_refused(tmp_path):
    assert build(tmp_path, enabled=False).log is None
    with pytest.raises(UserError, match=r"tensorboard\.gradient_norms=5st with"):
        build(tmp_path, enabled=False, gradient_norms="5st")


def test_whether_it_is_installed_is_seen_without_importing_it(monkeypatch):
    assert event_files.available()
    monkeypatch.setattr(event_files.importlib.util, "find_spec", lambda name: None)
    assert not event_files.available()


def test_keras_own_tensorboard_shows_the_measurements(tmp_path):
    added = [callbacks.LearningRateLogger(), keras.callbacks.TensorBoard(tmp_path)]
    ours(tiny.model(), added)
    tags = {tag for tag, _, _ in events_of(tmp_path / "train")}
    assert "epoch_learning_rate" in tags


def test_tensorboard_itself_reads_what_is_written(tmp_path):
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    log = EventLog(tmp_path)
    log.start(0)
    log.scalars("train", {"loss": 0.5, "nan": float("nan")}, 3)
    log.image("train", "inputs", np.full((4, 6, 3), 7, np.uint8), 3)
    log.hyperparameters("train", {"rate": 0.1})
    read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert set(read.PluginRunToTagToContent("scalars")["train"]) == {"loss", "nan"}
    assert set(read.PluginRunToTagToContent("images")["train"]) == {"inputs"}
    assert read.PluginRunToTagToContent("hparams")["train"]
    (point,) = read.Tensors("train", "loss")
    assert (point.step, tf.make_ndarray(point.tensor_proto)) == (3, 0.5)
