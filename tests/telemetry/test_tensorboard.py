import io
import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.telemetry.figures import progress_figures, race_figures, weight_samples
from trackmania_rl.telemetry.loggers.tensorboard import TensorboardWriter, custom_scalars_layout
from trackmania_rl.telemetry.race_film import write_gif
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import TrainingStatistics

MAPS = ("flat", "flat 2", "valley")


def race(map_name, is_explo, race_time_ms, furthest_zone):
    return RaceRecord(
        map_name=map_name,
        is_explo=is_explo,
        collector=0,
        race_finished=True,
        race_time_ms=race_time_ms,
        meters=furthest_zone / 2,
        furthest_zone=furthest_zone,
        n_actions=100,
        cutoff_reason=None,
        figures={"timings_ms/policy": 0.25, "mean_speed_m_s": 40.0},
    )


RACES = [
    race("flat", True, 30_000, 100),
    race("flat 2", True, 40_000, 200),
    race("valley", False, 50_000, 300),
    race("flat", True, 29_000, 110),
]


def write_race(writer, r, figures, reference_times=None):
    history = figures.maps[r.map_name].history(r.is_explo)
    writer.log_figures(race_figures(r, history, reference_times), figures.frames_total)


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return events


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorboard")
    clock_s = iter(range(0, 1_000))
    figures = TrainingStatistics(lambda: float(next(clock_s)))
    writer = TensorboardWriter(folder, MAPS)
    for r in RACES:
        figures.add_race(r)
        figures.add_collector_time(0, waited_s=1.0, elapsed_s=4.0)
        figures.weights_age_s[0] = 2.5
        figures.rollouts_left_out = {"races_lost": 3}
        figures.observe(batches_total=5, learner_waited_s=0.0, replay_transitions=25, replay_capacity=100)
        write_race(writer, r, figures)
    figures.current_values = {"epsilon": 0.5, "epsilon_boltzmann": 0.1, "learning_rate": 1e-3, "gamma": 0.999}
    means = {"loss": 1.0, "test_loss": 2.0, "mean_q": 3.0, "grad_norm": 4.0}
    writer.log_figures(progress_figures(figures, means), figures.frames_total)
    network = torch.nn.Linear(3, 2)
    network.bias.data.fill_(torch.nan)
    for name, values in weight_samples(network.named_parameters()):
        writer.log_histogram(name, values, figures.frames_total)
    writer.log_picture("rollout/racing_line/valley", np.zeros((20, 30, 3), np.uint8), figures.frames_total)
    film = tmp_path_factory.mktemp("film") / "film.mp4"
    write_gif(film.with_suffix(".gif"), [Image.new("RGB", (16, 12), colour) for colour in ("red", "blue")], 100)
    writer.log_film("rollout/film/valley", film, figures.frames_total)
    writer.log_settings({"batch_size": 512, "run_name": "tested"})
    writer.log_text("configuration/config.py", "batch_size = 512  # a *star*\n", figures.frames_total)
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


def test_what_is_measured_at_intervals(written):
    assert scalars(written, "train/test_loss") == [(400, 2.0)]
    assert scalars(written, "train/schedule/epsilon") == [(400, 0.5)]
    assert scalars(written, "waiting/collector_0") == [(400, 0.25)]
    assert scalars(written, "weights_age_s/collector_0") == [(400, 2.5)]
    assert scalars(written, "train/left_out/races_lost") == [(400, 3.0)]
    assert scalars(written, "train/replay/fill") == [(400, 0.25)]
    assert scalars(written, "train/speed/actions_per_s")[0][1] > 0


def test_histograms_leave_out_what_is_not_finite(written):
    assert written.Tags()["histograms"] == ["weights/weight"]


def test_the_picture(written):
    (image,) = written.Images("rollout/racing_line/valley")
    assert (image.height, image.width) == (20, 30)


def test_the_film_moves(written):
    (event,) = written.Images("rollout/film/valley")
    assert (event.height, event.width, event.step) == (12, 16, 400)
    with Image.open(io.BytesIO(event.encoded_image_string)) as film:
        assert [frame.convert("RGB").getpixel((3, 3)) for frame in ImageSequence.Iterator(film)] == [
            (255, 0, 0),
            (0, 0, 255),
        ]


def test_the_configuration_is_shown_as_it_is(written):
    (event,) = written.Tensors("configuration/config.py/text_summary")
    assert event.tensor_proto.string_val[0].decode() == "```\nbatch_size = 512  # a *star*\n\n```"


def test_the_settings_are_beside_the_results(written):
    metadata = {tag: written.SummaryMetadata(tag) for tag in written._plugin_to_tag_to_content["hparams"]}
    contents = [HParamsPluginData.FromString(m.plugin_data.content) for m in metadata.values()]
    (started,) = (content for content in contents if content.HasField("session_start_info"))
    assert {name: value.WhichOneof("kind") for name, value in started.session_start_info.hparams.items()} == {
        "batch_size": "number_value",
        "run_name": "string_value",
    }
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
    assert found["flat: explored"] == ["rollout/race_time_s/explored/flat"]
    assert found["flat 2: metres, explored"] == ["rollout/meters/explored/flat 2"]
    assert found["loss"] == ["train/loss"]
    (margin,) = charts["gradient norm: median, first quartile to 98th centile"].margin.series
    assert (margin.value, margin.lower, margin.upper) == tuple(
        f"train/grad_norm_{name}" for name in ("median", "q1", "c98")
    )
    assert custom_scalars_layout(("valley", "valley")) == custom_scalars_layout(("valley",))


def test_blind_maps_and_times_to_beat_have_charts_where_there_are_any():
    plain = custom_scalars_layout(MAPS)["map cycle"]
    assert list(plain) == ["trained maps: finish rate", "trained maps: medians together"]
    charts = custom_scalars_layout(MAPS, maps_with_times={"valley"}, blind_maps={"valley"})["map cycle"]
    assert "blind maps: medians over author times" in charts
    assert "trained maps: medians over author times" not in charts


def test_a_resumed_run_takes_back_what_came_after_its_checkpoint(tmp_path):
    figures = TrainingStatistics()
    for resumed_at_frame, times_ms in ((0, (30_000, 31_000, 32_000)), (200, (33_000,))):
        figures.frames_total = resumed_at_frame
        writer = TensorboardWriter(tmp_path, MAPS, resumed_at_frame)
        for time_ms in times_ms:
            r = race("flat", True, time_ms, 10)
            figures.add_race(r)
            write_race(writer, r, figures)
        writer.close()
    assert scalars(read(tmp_path), "rollout/race_time_s/explored/flat") == [(100, 30.0), (200, 31.0), (300, 33.0)]


def test_reference_times_become_differences_where_there_are_any(tmp_path):
    figures = TrainingStatistics()
    times = {"flat": MedalTimes(29_500, 31_000, None, None), "flat 2": MedalTimes(None, None, 35_000, 36_000)}
    writer = TensorboardWriter(tmp_path, MAPS, maps_with_times=times)
    for r in RACES:
        figures.add_race(r)
        write_race(writer, r, figures, times)
    writer.close()
    events = read(tmp_path)
    differences = {tag for tag in events.Tags()["scalars"] if "minus" in tag}
    assert differences == {"rollout/best_minus_author_s/explored/flat", "rollout/best_minus_gold_s/explored/flat"}
    written = {tag: [event.value for event in events.Scalars(tag)] for tag in differences}
    np.testing.assert_allclose(written["rollout/best_minus_author_s/explored/flat"], [0.5, -0.5])
    np.testing.assert_allclose(written["rollout/best_minus_gold_s/explored/flat"], [-1.0, -2.0])
    ratios = [event.value for event in events.Scalars("rollout/best_over_author/explored/flat")]
    np.testing.assert_allclose(ratios, [30 / 29.5, 29 / 29.5])
    assert "rollout/median_over_gold/explored/flat" in events.Tags()["scalars"]
    charts = custom_scalars_layout(MAPS, times)["race times"]
    assert re.match(charts["flat: best minus gold time"][1][0], "rollout/best_minus_gold_s/evaluated/flat")
    assert "valley: best minus gold time" not in charts


def test_pictures_come_back_as_they_were(tmp_path):
    rng = np.random.default_rng(2)
    pictures = {"many": rng.integers(0, 256, (40, 30, 3), np.uint8), "few": np.zeros((40, 30, 3), np.uint8)}
    pictures["few"][5:20, 7:9] = (200, 30, 99)
    writer = TensorboardWriter(tmp_path, MAPS)
    for name, picture in pictures.items():
        writer.log_picture(name, picture, 5)
    writer.close()
    events = read(tmp_path)
    for name, picture in pictures.items():
        [event] = events.Images(name)
        assert (event.step, event.width, event.height) == (5, 30, 40)
        decoded = Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB")
        np.testing.assert_array_equal(np.asarray(decoded), picture)
