"""Parts of a collector's process: networks that follow the run's weights, and random numbers of its own."""

from pathlib import Path
from types import SimpleNamespace

import numba

from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.channels.run_state import SharedRunState
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.multiprocess.collector_process import CollectorTask, beating_until_it_plays, make_parts
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import MapEntry


def task_of(live, name, **changes):
    parts = {
        "index": 0,
        "name": name,
        "maps_folder": Path("maps"),
        "tracks_folder": Path("tracks"),
        "live_folder": Path("live"),
        "rollouts": SimpleNamespace(),
        "run_state": SharedRunState(live.current, {}),
        "make_games_builder": make_games_builder,
        "make_agent_builder": make_agent_builder,
    }
    return CollectorTask(**{**parts, **changes})


def parts_of(task):
    return make_parts(task, race_spaces(task.run_state.settings))


def first_tracks(parts):
    generator = {"difficulty": (0.2, 0.6), "first_seed": 0, "last_seed": 10**6}
    entry = MapEntry(map_name="made", generator=generator, is_explo=True, fill_buffer=True)
    return [Path(parts.generated_maps.draw(entry).map_path).stem for _ in range(4)]


def reseeded(live):
    run = live.current.run.model_copy(update={"seed": live.current.run.seed + 1})
    return SharedRunState(live.current.model_copy(update={"run": run}), {})


def test_every_collector_has_tracks_of_its_own_which_are_the_same_however_often_it_is_started(live, tmp_path):
    tasks = (("one", 0), ("one again", 0), ("other", 1))

    def tracks_of(name, **changes):
        return first_tracks(parts_of(task_of(live, name, tracks_folder=tmp_path / name, **changes)))

    one, one_again, other = (tracks_of(name, index=index) for name, index in tasks)
    assert one == one_again
    assert len({*one, *other}) == 8
    assert tracks_of("one", run_state=reseeded(live)) != one


def test_it_beats_while_numba_compiles():
    beats = []
    with beating_until_it_plays(lambda: beats.append(1), every_s=1e-4) as beat:
        beat()
        n_before = len(beats)

        @numba.njit
        def compiled(x):
            return x + 1.0

        assert compiled(1.5) == 2.5
        assert len(beats) > n_before
