"""The names and values that reach tensorboard, and the layout of its charts."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.telemetry.conftest import race_of, race_record
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.telemetry.figures import chart_layout, progress_figures, race_figures, weight_samples
from trackmania_rl.telemetry.films import write_gif
from trackmania_rl.telemetry.loggers import open_loggers
from trackmania_rl.telemetry.statistics import TrainingStatistics

MAPS = ("flat", "flat 2", "valley")
CYCLE = tuple(
    MapEntry(map_name=name, map_path=name, reference_line=name, is_explo=True, fill_buffer=True) for name in MAPS
)
PICTURE = np.random.default_rng(2).integers(0, 256, (20, 30, 3), np.uint8)


def race(map_name, is_explo, race_time_ms, furthest_zone, **others):
    return race_record(
        race_time_ms,
        map_name=map_name,
        is_explo=is_explo,
        meters=furthest_zone / 2,
        furthest_zone_idx=furthest_zone,
        n_actions=100,
        timings_ms={"policy": 0.25},
        mean_speed_m_s=40.0,
        checkpoint_times_ms=(8_000, race_time_ms),
        **others,
    )


RACES = [
    race("flat", True, 30_000, 100),
    race("flat 2", True, 40_000, 200),
    race("valley", False, 50_000, 300),
    race("flat", True, 29_000, 110),
]
Q_VALUES = np.array([[1.0, 3.0, 2.5], [0.0, -2.0, -4.0]], np.float32)


def settings_of(repository_root):
    settings = load_settings(repository_root / "config_files" / "config.py", {"loggers": "tensorboard"})
    return settings.model_copy(update={"game": settings.game.model_copy(update={"map_cycle": CYCLE})})


def open_tensorboard(repository_root, folder, resumed_at_frame=0):
    (logger,) = open_loggers(settings_of(repository_root), RunFolder(folder, folder), resumed_at_frame)
    return logger


def write_race(writer, r, figures):
    history = figures.maps[r.map_name].history(r.is_explo)
    writer.do("figures", race_figures(r, history, None, Q_VALUES), figures.frames_total)


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return events


@pytest.fixture(scope="module")
def written(tmp_path_factory, repository_root):
    folder = tmp_path_factory.mktemp("tensorboard")
    clock_s = iter(range(0, 1_000))
    figures = TrainingStatistics(lambda: float(next(clock_s)))
    writer = open_tensorboard(repository_root, folder)
    for r in RACES:
        figures.add(race_of(r.with_changes(waited_s=1.0, elapsed_s=4.0, weights_age_s=2.5)))
        figures.observe(learner_waited_s=0.0, replay_transitions=25, replay_capacity=100)
        write_race(writer, r, figures)
    figures.current_values = {"epsilon": 0.5, "epsilon_boltzmann": 0.1, "learning_rate": 1e-3, "gamma": 0.999}
    means = {"loss": 1.0, "test_loss": 2.0, "mean_q": 3.0, "grad_norm": 4.0}
    writer.do("figures", progress_figures(figures, settings_of(repository_root), means), figures.frames_total)
    network = torch.nn.Linear(3, 2)
    network.bias.data.fill_(torch.nan)
    for name, values in weight_samples(network.named_parameters()):
        writer.do("histogram", name, values, figures.frames_total)
    writer.do("picture", "rollout/racing_line/valley", PICTURE, figures.frames_total)
    film = tmp_path_factory.mktemp("film") / "film.mp4"
    write_gif(film.with_suffix(".gif"), [Image.new("RGB", (16, 12), colour) for colour in ("red", "blue")], 100)
    writer.do("film", "rollout/film/valley", film, figures.frames_total)
    writer.do("text", "configuration/config.py", "batch_size = 512  # a *star*\n", figures.frames_total)
    writer.close()
    return read(folder)


def scalars(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_every_race_is_written_under_its_own_map(written):
    assert scalars(written, "rollout/race_time_s/explored/flat") == [(100, 30.0), (400, 29.0)]
    assert scalars(written, "rollout/race_time_s/explored/flat 2") == [(200, 40.0)]
    assert scalars(written, "rollout/race_time_s/evaluated/valley") == [(300, 50.0)]
    assert scalars(written, "rollout/best_time_s/explored/flat") == [(100, 30.0), (400, 29.0)]
    assert scalars(written, "rollout/median_time_s/explored/flat") == [(100, 30.0), (400, 29.5)]
    assert scalars(written, "rollout/zone_reached/evaluated/valley") == [(300, 300.0)]
    assert scalars(written, "rollout/timings_ms/policy/evaluated/valley") == [(300, 0.25)]
    assert scalars(written, "rollout/finish_rate/explored/flat 2") == [(200, 1.0)]
    assert scalars(written, "rollout/split_2_s/evaluated/valley") == [(300, 42.0)]
    assert "rollout/split_2_s/explored/flat" not in written.Tags()["scalars"]
    values = {"mean_q": 0.5 / 6, "mean_value": 1.5, "action_gap": (0.5 + 2.0) / 2}
    for name, value in values.items():
        assert scalars(written, f"rollout/{name}/explored/flat 2") == [(200, pytest.approx(value))]


def test_measurements_at_intervals(written):
    assert scalars(written, "train/test_loss") == [(400, 2.0)]
    assert scalars(written, "train/schedule/epsilon") == [(400, 0.5)]
    assert scalars(written, "waiting/collector_0") == [(400, 0.25)]
    assert scalars(written, "weights_age_s/collector_0") == [(400, 2.5)]
    assert scalars(written, "train/replay/fill") == [(400, 0.25)]
    assert scalars(written, "train/speed/actions_per_s")[0][1] > 0
    assert written.Tags()["histograms"] == ["weights/weight"], "a parameter of nothing but NaN has none"


def test_pictures_films_and_texts_come_back_as_they_were(written):
    (image,) = written.Images("rollout/racing_line/valley")
    decoded = Image.open(io.BytesIO(image.encoded_image_string)).convert("RGB")
    np.testing.assert_array_equal(np.asarray(decoded), PICTURE)
    (event,) = written.Images("rollout/film/valley")
    assert (event.height, event.width, event.step) == (12, 16, 400)
    with Image.open(io.BytesIO(event.encoded_image_string)) as film:
        colours = [frame.convert("RGB").getpixel((3, 3)) for frame in ImageSequence.Iterator(film)]
    assert colours == [(255, 0, 0), (0, 0, 255)]
    (event,) = written.Tensors("configuration/config.py/text_summary")
    assert event.tensor_proto.string_val[0].decode() == "```\nbatch_size = 512  # a *star*\n\n```"


def test_the_settings_are_beside_the_results(written):
    metadata = {tag: written.SummaryMetadata(tag) for tag in written._plugin_to_tag_to_content["hparams"]}
    contents = [HParamsPluginData.FromString(m.plugin_data.content) for m in metadata.values()]
    (started,) = (content for content in contents if content.HasField("session_start_info"))
    kinds = {name: value.WhichOneof("kind") for name, value in started.session_start_info.hparams.items()}
    assert (kinds["batch_size"], kinds["run_name"]) == ("number_value", "string_value")
    (experiment,) = (content for content in contents if content.HasField("experiment"))
    metrics = {info.name.tag for info in experiment.experiment.metric_infos}
    assert {"rollout/best_time_s/evaluated/valley", "rollout/finish_rate/evaluated/flat 2"} <= metrics


def test_every_chart_of_the_layout_is_one_line_of_one_map(written):
    (event,) = written.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {chart.title: chart for category in layout.category for chart in category.chart}
    tags = written.Tags()["scalars"]
    found = {
        title: [tag for tag in tags for pattern in chart.multiline.tag if re.match(pattern, tag)]
        for title, chart in charts.items()
        if chart.WhichOneof("content") == "multiline"
    }
    assert max(map(len, found.values())) == 1, "tensorboard gives all lines of a run one colour"
    assert found["flat: exploration"] == ["rollout/race_time_s/explored/flat"]
    assert found["flat 2: metres, exploration"] == ["rollout/meters/explored/flat 2"]
    assert found["loss"] == ["train/loss"]
    (margin,) = charts["gradient norm: median, first quartile to 98th centile"].margin.series
    assert (margin.value, margin.lower, margin.upper) == tuple(
        f"train/grad_norm_{name}" for name in ("median", "q1", "c98")
    )
    blind = [entry.model_copy(update={"fill_buffer": entry.map_name != "valley"}) for entry in CYCLE]
    of_cycle = chart_layout(blind, maps_with_times={"valley"})["map cycle"]
    assert "blind maps: medians over author times" in of_cycle
    assert "trained maps: medians over author times" not in of_cycle


def test_a_resumed_run_takes_back_races_after_its_checkpoint(repository_root, tmp_path):
    figures = TrainingStatistics()
    for resumed_at_frame, times_ms in ((0, (30_000, 31_000, 32_000)), (200, (33_000,))):
        figures.frames_total = resumed_at_frame
        writer = open_tensorboard(repository_root, tmp_path, resumed_at_frame)
        for time_ms in times_ms:
            r = race("flat", True, time_ms, 10)
            figures.add(race_of(r))
            write_race(writer, r, figures)
        writer.close()
    assert scalars(read(tmp_path), "rollout/race_time_s/explored/flat") == [(100, 30.0), (200, 31.0), (300, 33.0)]


def test_reference_times_become_differences_where_there_are_any():
    statistics, written = TrainingStatistics(), {}
    times = {"flat": MedalTimes(29_500, 31_000, None, None), "flat 2": MedalTimes(None, None, 35_000, 36_000)}
    for r in RACES:
        statistics.add(race_of(r))
        history = statistics.maps[r.map_name].history(r.is_explo)
        for name, value in race_figures(r, history, times, Q_VALUES).items():
            if "minus" in name or "_over_" in name:
                written.setdefault(name.removeprefix("rollout/").removesuffix("/explored/flat"), []).append(value)
    assert written == {
        "best_minus_author_s": pytest.approx([0.5, -0.5]),
        "best_minus_gold_s": pytest.approx([-1.0, -2.0]),
        "best_over_author": pytest.approx([30 / 29.5, 29 / 29.5]),
        "best_over_gold": pytest.approx([30 / 31, 29 / 31]),
        "median_over_author": pytest.approx([30 / 29.5, 29.5 / 29.5]),
        "median_over_gold": pytest.approx([30 / 31, 29.5 / 31]),
    }
    charts = chart_layout(CYCLE, times)["race times"]
    assert re.match(charts["flat: best minus gold time"][1][0], "rollout/best_minus_gold_s/evaluated/flat")
    assert "valley: best minus gold time" not in charts


@pytest.mark.parametrize(("is_generated", "has_best"), [(True, False), (False, True)])
def test_generated_tracks_have_a_share_of_finishes_and_no_best_time(is_generated, has_best):
    figures = TrainingStatistics()
    r = race("made", False, 31_000, 200, track="generated_0.412_7", is_generated=is_generated)
    figures.add(race_of(r))
    names = race_figures(r, figures.maps["made"].evaluated)
    assert names["rollout/finish_rate/evaluated/made"] == 1.0
    assert names["rollout/race_time_s/evaluated/made"] == 31.0
    for name in ("best_time_s", "median_time_s", "split_1_s"):
        assert (f"rollout/{name}/evaluated/made" in names) == has_best
