"""Ghosts' inputs as scripts and back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl.gbx.replay import (
    ControlEvent,
    Ghost,
    Replay,
    ReplayInputsError,
    ghost_events_of_script,
    ghost_of_driver,
    read_replay,
    script_of_ghost,
)
from trackmania_rl.protocol.input_script import ANALOG_FULL, Input, InputEvent, parse_input_script, write_input_script

HERE = Path("some.Replay.Gbx")
REPLAYS = {
    "B13-Obstacle_24.94_a.Replay.Gbx": 320,
    "B13-Obstacle_24.95_a.Replay.gbx": 357,
    "PlatformA3_33.66.Replay.gbx": 151,
    "mydli_20.14.Replay.gbx": 57,
}
"""Each with its inputs, the game's own two events not counted."""


def ghost(*events: tuple[int, str, int], login: str = "someone", race_time_ms: int | None = 20_140) -> Ghost:
    return Ghost(login, race_time_ms, (), 0, None, tuple(ControlEvent(*event) for event in events), "")


@pytest.mark.parametrize(("name", "n_inputs"), REPLAYS.items())
def test_real_inputs_survive(shared_data: Path, name: str, n_inputs: int) -> None:
    best = read_replay(shared_data / "replays" / name).best
    script = script_of_ghost(best, HERE)
    if "24.95" in name:
        first = write_input_script(script.events).splitlines()[:3]
        assert first == ["0.00 steer 8325", "0.00 press up", "0.01 steer 15836"]
    assert len(script.events) == n_inputs
    assert (script.n_before_start, script.unknown) == (0, {})
    read_back = parse_input_script(write_input_script(script.events))
    assert tuple(read_back) == script.events
    again = ghost_events_of_script(read_back, best.race_time_ms)
    lost = [(event.name, event.time_ms) for event in best.events if event not in again]
    came = [(event.name, event.time_ms) for event in again if event not in best.events]
    if name.startswith("mydli"):  # its respawn lies within ticks
        assert [name for name, _ in lost] == [name for name, _ in came] == ["Respawn", "Respawn"]
        assert [-(-time_ms // 10) * 10 for _, time_ms in lost] == [time_ms for _, time_ms in came]
        assert script.n_rounded == 2
    else:
        assert again == best.events
        assert script.n_rounded == 0


@pytest.mark.parametrize(
    ("events", "script"),
    [
        # TMInterface's own replays begin at 65,535 ms.
        (((65_535, "_FakeIsRaceRunning", 1), (65_545, "Accelerate", 1)), "0.00 press up\n"),
        # Without the second event the axis is inverted.
        (((0, "_FakeIsRaceRunning", 1), (0, "_FakeDontInverseAxis", 1), (20, "Steer", 7)), "0.01 steer -7\n"),
        (((11_210, "Respawn", 1),), "11.20 press enter\n"),
        (((11_211, "Respawn", 1),), "11.21 press enter\n"),
        (((30, "AccelerateReal", 65_536), (40, "_FakeSomething", 1)), "0.02 press up\n"),
    ],
)
def test_clocks_and_axes_of_ghosts(events: tuple[tuple[int, str, int], ...], script: str) -> None:
    assert write_input_script(script_of_ghost(ghost(*events), HERE).events) == script


def test_keys_held_at_the_start_are_pressed_there() -> None:
    before = ((-500, "Accelerate", 1), (-400, "SteerLeft", 1), (-300, "SteerLeft", 0), (-200, "Steer", 5))
    after = ((0, "Steer", 9), (0, "_FakeIsRaceRunning", 1), (10, "Brake", 1), (20, "Camera2", 1))
    script = script_of_ghost(ghost(*before, *after), HERE)
    assert write_input_script(script.events) == "0.00 press up\n0.00 steer 9\n0.00 press down\n"
    assert (script.n_before_start, script.unknown) == (5, {"Camera2": 1})


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((), "holds no inputs"),
        (((4_000_000_000, "Brake", 1),), "damaged: Brake 3999999990 ms after the start"),
        (((10, "Steer", 70_000),), "damaged: Steer 70000"),
    ],
)
def test_impossible_races_are_refused(events: tuple[tuple[int, str, int], ...], told: str) -> None:
    with pytest.raises(ReplayInputsError, match=told):
        script_of_ghost(ghost(*events), HERE)
    with pytest.raises(ReplayInputsError, match="begins a new race"):
        ghost_events_of_script([InputEvent(50, Input.GIVE_UP, 1)])


@given(
    st.lists(
        st.builds(
            lambda tick, input_, share: InputEvent(
                10 * tick, input_, share if input_ in (Input.STEER, Input.GAS) else int(share > 0)
            ),
            st.integers(0, 200_000),
            st.sampled_from([input_ for input_ in Input if input_ is not Input.GIVE_UP]),
            st.integers(-ANALOG_FULL, ANALOG_FULL),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_every_script_survives_being_a_ghost(events: list[InputEvent]) -> None:
    events.sort(key=lambda event: event.time_ms)
    as_ghost = ghost(*((event.time_ms, event.name, event.value) for event in ghost_events_of_script(events, 5_000)))
    assert list(script_of_ghost(as_ghost, HERE).events) == events


def test_a_drivers_ghost_is_found() -> None:
    ghosts = (ghost(login="fast", race_time_ms=1), ghost(login="Slow", race_time_ms=2))
    replay = Replay(HERE, "", None, ghosts)
    assert ghost_of_driver(replay).login == "fast"
    assert ghost_of_driver(replay, "slow").login == "Slow"
    with pytest.raises(ReplayInputsError, match="its drivers are Slow, fast"):
        ghost_of_driver(replay, "nobody")
