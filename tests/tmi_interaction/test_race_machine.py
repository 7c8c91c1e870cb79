"""The race as a step machine, against a small game with a switch for each open point of the protocol."""

import itertools
import math
from dataclasses import replace

import numba
import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import AnalogInput, KeyState, MessageId
from trackmania_rl.race import cutoffs
from trackmania_rl.race import observation as features_module
from trackmania_rl.race import zones as zones_module
from trackmania_rl.race.cutoffs import CutoffWatch
from trackmania_rl.race.observation import FeatureBuilder, ObservationLayout
from trackmania_rl.race.types import Observation, RaceEnd
from trackmania_rl.tmi_interaction import race_start
from trackmania_rl.tmi_interaction.race_machine import RaceMachine, compile_ahead
from trackmania_rl.tmi_interaction.transport import GameEvent, GameProtocolError, GameTimeoutError

FORWARD, NOTHING = 0, 3
VARIANTS = {
    "strict": {},
    "checkpoint before step": {"checkpoint_before_step": True},
    "step repeated after a rewind": {"step_repeated_after_rewind": True},
    "finish repeated": {"finish_repeated": True},
    "laps reported": {"laps_reported": True},
    "rewinds report checkpoints": {"rewind_reports_checkpoints": True},
    "finish never reported": {"finish_unreported": True},
    "step at 0 missing once": {"zero_step_missing_once": True},
    "old steps before a new race": {"steps_before_give_up_takes_effect": 40},
    "not in the menus at first": {"in_menus": False},
    "everything at once": {
        "checkpoint_before_step": True,
        "step_repeated_after_rewind": True,
        "finish_repeated": True,
        "laps_reported": True,
        "rewind_reports_checkpoints": True,
        "zero_step_missing_once": True,
        "steps_before_give_up_takes_effect": 40,
        "in_menus": False,
    },
}


@pytest.fixture(params=["image", "no image"])
def any_settings(request, settings, settings_without_image):
    return settings if request.param == "image" else settings_without_image


def drive(machine, game_map, actions=None):
    """Drive with the given actions, then forward; returns what was seen and the end."""
    actions = list(actions or [])
    seen = [machine.reset(game_map)]
    chosen = []
    while True:
        chosen.append(actions.pop(0) if actions else FORWARD)
        result = machine.step(chosen[-1])
        if isinstance(result, RaceEnd):
            return seen, chosen, result
        seen.append(result)


@pytest.mark.parametrize("variant", VARIANTS)
def test_races_are_the_same_on_every_variant_of_the_game(
    variant, any_settings, make_fake_game, make_machine, straight_map
):
    game = make_fake_game(**VARIANTS[variant])
    machine = make_machine(game, any_settings)
    for n_waits in (3, 0, 7):
        game.driven.clear()
        seen, chosen, end = drive(machine, straight_map, [NOTHING] * n_waits)
        finish_ms = 50 * n_waits + math.ceil(41.1 / 0.2) * 10
        assert end.is_finished
        assert end.race_time_ms == finish_ms == game.driven[-1][0] + 10
        assert end.checkpoint_times_ms == (50 * n_waits + 1000, finish_ms)
        assert [observation.race_time_ms for observation in seen] == list(range(0, 50 * len(seen), 50))
        effective = list(range(0, finish_ms, 50))
        assert len(effective) <= len(seen) <= len(effective) + 1
        held = [KeyState(False, False, any_settings.game.inputs[action].accelerate, False) for action in chosen]
        assert [keys for _, keys in game.driven] == [held[t // 50] for t, _ in game.driven]
        assert [t for t, _ in game.driven] == list(range(0, finish_ms, 10))


@pytest.mark.parametrize("checkpoint_before_step", [False, True])
def test_a_finish_exactly_at_a_decision(
    any_settings, make_fake_game, make_machine, straight_map, checkpoint_before_step
):
    game = make_fake_game(finish_m=41.99, checkpoint_before_step=checkpoint_before_step)
    seen, _, end = drive(make_machine(game, any_settings), straight_map)
    assert end.race_time_ms == 2100
    n_decisions_before_the_finish = sum(observation.race_time_ms < end.race_time_ms for observation in seen)
    assert n_decisions_before_the_finish == 42


@pytest.mark.parametrize("later_ms", [-60, 1010, 10_000_000])
def test_a_finish_at_a_time_that_cannot_be_is_nonsense(
    any_settings, make_fake_game, make_machine, straight_map, later_ms
):
    machine = make_machine(make_fake_game(finish_told_later_ms=later_ms), any_settings)
    with pytest.raises(GameProtocolError, match="the last decision was at 20"):
        drive(machine, straight_map)


def test_first_race_counts_down_and_later_ones_rewind(settings, make_fake_game, make_machine, straight_map):
    game = make_fake_game()
    machine = make_machine(game, settings)
    drive(machine, straight_map)
    assert game.calls.count('map "straight.toml"') == 1
    assert "give up" not in game.calls
    assert game.timeout_ms == settings.game.timeout_between_races_ms
    game.calls.clear()
    machine.reset(straight_map)
    assert game.timeout_ms == settings.game.timeout_during_race_ms
    assert "rewind to 0" in game.calls
    assert not any(call.startswith("map") or call == "give up" for call in game.calls)


def test_the_game_is_asked_once_to_report_a_step_for_each_decision(
    settings, make_fake_game, make_machine, straight_map
):
    game = make_fake_game()
    machine = make_machine(game, settings)
    for _ in range(2):
        drive(machine, straight_map)
    asked = [call for call in game.calls if call.startswith("step period")]
    assert asked == [f"step period {settings.game.ms_per_action}"]


def test_another_map_is_loaded_and_counted_down(settings, make_fake_game, make_machine, straight_map):
    game = make_fake_game()
    machine = make_machine(game, settings)
    drive(machine, straight_map)
    other = replace(straight_map, path="other.toml")
    _, _, end = drive(machine, other)
    assert game.map == "other.toml"
    assert end.is_finished
    drive(machine, straight_map)
    assert game.calls.count('map "straight.toml"') == 2


def test_reset_in_the_middle_of_a_race_begins_anew(any_settings, make_fake_game, make_machine, straight_map):
    machine = make_machine(make_fake_game(), any_settings)
    machine.reset(straight_map)
    for _ in range(5):
        machine.step(FORWARD)
    observation = machine.reset(straight_map)
    assert observation.race_time_ms == 0
    assert observation.meters == pytest.approx(straight_map.zones.start_m, abs=0.3)
    _, _, end = drive(machine, straight_map)
    assert end.race_time_ms == 2060


def test_observations_with_and_without_image(
    settings, settings_without_image, make_fake_game, make_machine, straight_map
):
    with_image, _, _ = drive(make_machine(make_fake_game(), settings), straight_map)
    without, _, _ = drive(make_machine(make_fake_game(), settings_without_image), straight_map)
    assert with_image[3].frame.shape == (1, 8, 16)
    assert (with_image[3].frame == 3).all()  # the frame shows time 150 ms, not the next tick
    assert without[3].frame.shape == (1, 0, 0)
    assert len(with_image) == len(without)
    for a, b in zip(with_image, without, strict=True):
        assert (a.floats == b.floats).all()
        assert (a.zone_idx, a.meters, a.race_time_ms) == (b.zone_idx, b.meters, b.race_time_ms)


def test_without_image_the_game_is_never_frozen(settings_without_image, make_fake_game, make_machine, straight_map):
    game = make_fake_game()
    drive(make_machine(game, settings_without_image), straight_map)
    assert "rewind to current" not in game.calls
    assert game.frame_size is None


def test_progress_and_speed_are_reported(settings, make_fake_game, make_machine, straight_map):
    seen, _, end = drive(make_machine(make_fake_game(), settings), straight_map)
    zones = straight_map.zones
    assert seen[0].speed_m_s == 0
    assert seen[10].speed_m_s == pytest.approx(20)
    assert seen[10].meters - seen[9].meters == pytest.approx(1, abs=1e-4)
    assert end.furthest_zone_idx == zones.finish_zone_idx
    assert end.furthest_m == zones.finish_m


def test_a_standing_car_is_cut_off(any_settings, make_fake_game, make_machine, straight_map):
    machine = make_machine(make_fake_game(), any_settings)
    machine.reset(straight_map)
    for n_actions in range(1, 1000):
        result = machine.step(FORWARD if n_actions <= 10 else NOTHING)
        if isinstance(result, RaceEnd):
            break
    assert result.cutoff_reason == "no_progress"
    assert not result.is_finished
    assert result.race_time_ms == 500 + 2000
    assert result.furthest_m - straight_map.zones.start_m == pytest.approx(10, abs=0.3)
    assert drive(machine, straight_map)[2].is_finished


def test_a_long_race_is_cut_off(settings, make_fake_game, make_machine, straight_map):
    short = settings.game.model_copy(update={"cutoff_race_longer_than_ms": 1000})
    machine = make_machine(make_fake_game(), settings)
    machine.settings = short
    _, _, end = drive(machine, straight_map)
    assert end.cutoff_reason == "too_long"
    assert end.race_time_ms == 1050


def test_a_late_step_is_taken_as_the_next_decision(settings, make_fake_game, make_machine, straight_map):
    game = make_fake_game(late_step_at_ms=300)
    seen, _, end = drive(make_machine(game, settings), straight_map)
    assert [observation.race_time_ms for observation in seen[5:8]] == [250, 350, 400]
    assert end.race_time_ms == 2060


def test_a_game_that_never_steps_on_is_broken(settings_without_image, make_fake_game, make_machine, straight_map):
    game = make_fake_game()
    machine = make_machine(game, settings_without_image)
    machine.reset(straight_map)
    game.events = itertools.repeat(GameEvent(MessageId.RUN_STEP, 30))
    with pytest.raises(GameProtocolError, match="no next step"):
        machine.step(FORWARD)


def test_a_damaged_state_is_the_games_fault(settings_without_image, make_fake_game, make_machine, straight_map):
    game = make_fake_game()
    machine = make_machine(game, settings_without_image)
    machine.reset(straight_map)
    game._blob = lambda: b"short"
    with pytest.raises(GameProtocolError, match="5 bytes"):
        machine.step(FORWARD)


def test_step_before_reset_is_an_error(settings, make_fake_game, make_machine):
    with pytest.raises(RuntimeError, match="reset"):
        make_machine(make_fake_game(), settings).step(0)


def test_the_no_progress_window_slides_exactly(settings):
    """Against the plain sentence: fewer than so many new metres within the last so many milliseconds."""
    import random

    rules = settings.game.model_copy(update={"cutoff_no_progress_within_ms": 500, "cutoff_progress_m": 3.0})
    for seed in range(20):
        rng = random.Random(seed)
        watch, furthest, meters = CutoffWatch(rules), {}, 0.0
        for t in range(0, 20_000, 50):
            meters += rng.choice([0, 0, 0.1, 0.6, 1.0])
            furthest[t] = meters
            expected = t >= 500 and furthest[t] - furthest[t - 500] < 3.0
            got = watch.check(t, meters)
            assert (got == "no_progress") == expected
            if expected:
                break


def test_a_race_is_cut_off_at_its_horizon_unless_that_is_soft(settings):
    for soft_horizon, expected in ((False, "horizon"), (True, None)):
        changes = {"horizon": 30, "soft_horizon": soft_horizon, "cutoff_no_progress_within_ms": 100_000}
        watch = CutoffWatch(settings.game.model_copy(update=changes))
        verdicts = [watch.check(50 * n_actions, float(n_actions)) for n_actions in range(31)]
        assert verdicts == [None] * 30 + [expected]


def test_observation_is_what_the_docs_say(settings, make_fake_game, make_machine, straight_map):
    observation = make_machine(make_fake_game(), settings).reset(straight_map)
    assert isinstance(observation, Observation)
    assert observation.floats.shape == (184,)
    assert observation.car.shape == (22,)
    assert observation.frame.dtype == "uint8"


def test_a_game_that_stays_in_its_menus_is_given_up_in_time(
    settings_without_image, make_fake_game, make_machine, straight_map, monkeypatch
):
    monkeypatch.setattr(race_start, "START_WITHIN_S", 0.0)
    waits = []

    class SilentGame:
        def next_event(self, within_s=None):
            waits.append(within_s)
            raise GameTimeoutError("silent")

    start = race_start.RaceStart(SilentGame())
    monkeypatch.setattr(race_start, "START_WITHIN_S", 0.05)
    with pytest.raises(GameTimeoutError, match="does the game have this map"):
        start.reach("Real.Challenge.Gbx", None, settings_without_image.game)
    assert 0 < waits[0] <= 0.05
    monkeypatch.setattr(race_start, "START_WITHIN_S", 60.0)
    with pytest.raises(GameTimeoutError, match=r"^silent$"):
        start.reach("Real.Challenge.Gbx", None, settings_without_image.game)


def test_a_game_that_goes_on_with_its_old_race_is_given_up_in_time(
    any_settings, make_fake_game, make_machine, straight_map, monkeypatch
):
    monkeypatch.setattr(race_start, "START_WITHIN_S", 0.2)
    game = make_fake_game(in_menus=False, steps_before_give_up_takes_effect=10**9)
    with pytest.raises(GameTimeoutError, match=r"no race began on map 'straight\.toml' within 0\.2 s"):
        make_machine(game, any_settings).reset(straight_map)


def test_the_first_race_is_as_fast_and_as_patient_as_later_ones(
    settings_without_image, make_fake_game, make_machine, straight_map
):
    game = make_fake_game()
    machine = make_machine(game, settings_without_image)
    for _ in range(2):
        machine.reset(straight_map)
        assert game.speed == settings_without_image.game.running_speed
        assert game.timeout_ms == settings_without_image.game.timeout_during_race_ms


@pytest.mark.parametrize("n_old_steps", [0, 40])
def test_the_race_interface_is_hidden_in_the_countdown_of_every_map_that_is_loaded(
    any_settings, make_fake_game, make_machine, straight_map, n_old_steps
):
    game = make_fake_game(steps_before_give_up_takes_effect=n_old_steps)
    hidden_at_ms = []
    toggle = game.toggle_interface
    game.toggle_interface = lambda shown: (hidden_at_ms.append(game.time_ms), toggle(shown))
    machine = make_machine(game, any_settings)
    for game_map in (straight_map, straight_map, replace(straight_map, path="other.toml"), straight_map):
        drive(machine, game_map)
    assert [call for call in game.calls if call.startswith(("map", "interface"))] == [
        *('map "straight.toml"', "interface False"),
        *('map "other.toml"', "interface False"),
        *('map "straight.toml"', "interface False"),
    ]
    assert all(time_ms < 0 for time_ms in hidden_at_ms)


def test_the_race_interface_is_hidden_also_where_no_countdown_is_seen(settings, make_fake_game):
    game = make_fake_game()
    start = race_start.RaceStart(game)
    game.events = iter(
        (
            GameEvent(MessageId.ON_CONNECT),
            GameEvent(MessageId.RUN_STEP, 500),  # of an old race
            GameEvent(MessageId.RUN_STEP, 0),
        )
    )
    event, _ = start.reach("straight.toml", None, settings.game)
    assert event.race_time_ms == 0
    assert game.calls.count("interface False") == 1


def test_what_is_compiled_ahead_is_what_a_race_needs(settings, make_fake_game, straight_map, monkeypatch):
    """Numba compiles a function anew for each combination of types, read-only arrays being a type of their own."""
    seen = {}

    def watch(module, name):
        function = getattr(module, name)

        def watched(*arguments):
            seen.setdefault(name, set()).add(tuple(numba.typeof(argument) for argument in arguments))
            return function(*arguments)

        monkeypatch.setattr(module, name, watched)

    for module, name in (
        *((features_module, name) for name in ("count_gear_change", "fill_features")),
        *((zones_module, name) for name in ("move_zone", "meters_along_line")),
        (cutoffs, "judge"),
    ):
        watch(module, name)
    layout = ObservationLayout.from_settings(settings.observation)
    features = FeatureBuilder(layout, settings.game)
    compile_ahead(features, settings.game, straight_map)
    ahead = {name: set(types) for name, types in seen.items()}
    assert len(ahead) == 5
    drive(RaceMachine(make_fake_game(), settings.game, features), straight_map)
    assert seen == ahead


def analog(settings):
    return settings.model_copy(update={"game": settings.game.model_copy(update={"actions": "analog"})})


@pytest.mark.parametrize(("version", "runs"), [(0, "another plugin than this"), (1, "version 1 of this")])
def test_a_plugin_that_knows_keys_only_is_not_steered(
    settings, make_fake_game, make_machine, straight_map, version, runs
):
    machine = make_machine(make_fake_game(version=version), analog(settings))
    with pytest.raises(UserError, match=rf'actions = "analog": the game runs {runs} .* start the game again .*"keys"'):
        machine.reset(straight_map)


def test_analog_actions_are_sent_as_wheel_and_pedals(settings, make_fake_game, make_machine, straight_map):
    game = make_fake_game(version=2)
    machine = make_machine(game, analog(settings))
    machine.reset(straight_map)
    machine.step(np.array([-0.5, 0.2, 0.9], dtype=np.float32))
    assert game.driven[-1] == (40, AnalogInput(-32768, 65536, True))


def test_the_version_does_not_matter_for_keys(settings, make_fake_game, make_machine, straight_map):
    game = make_fake_game(version=0)
    make_machine(game, settings).reset(straight_map)
    assert "version" not in game.calls
