"""Observations of agents through both transports, and those of the memory: the same bytes."""

import numpy as np
import pytest
import torch

from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.experience_replay.memory import rows_of_race
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.actions import BatchDecision, PolicyDecision
from trackmania_rl.race.race import Race
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.training.collector import FragmentCutter

from .conftest import make_memory

N_ACTIONS = 12
LONGEST_MS = 2_500
OPTIONS = (
    'observation_blocks=("mini_race_time_actions", "speed_m_s", "range_finder_m")',
    "fourier_wavelengths={}",
    "views={'ranges_before': {'column': 'range_finder_m', 'shift': '-3:-1'}, "
    "'all_before': {'column': 'floats', 'shift': -5}, "
    "'zeros_before': {'column': 'actions', 'shift': -3, 'before': 'zero'}, "
    "'last_actions': {'column': 'actions', 'shift': '-4:-1:2'}, "
    "'around': {'column': 'actions', 'shift': '-6:5', 'input': False}, "
    "'earned': {'column': 'rewards', 'shift': '0:7', 'input': False}}",
    f"cutoff_race_longer_than_ms={LONGEST_MS}",
)
CASES = {
    "floats": (False,),
    "analog actions": (False, "actions=analog"),
    "skipped frames": (True, "frames_per_state=-4:0:2"),
    "ranges in a picture that nobody else sees": (True, "frames_per_state=0", "range_finder_source=picture"),
}


def decision(settings, seed, t):
    rng = np.random.default_rng((seed, t))
    if settings.game.actions == "analog":
        action = np.array([rng.normal(0, 0.7), 1, -1], np.float32)  # some beyond full left or right
        return PolicyDecision(action, True, np.zeros(1, np.float32))
    return PolicyDecision(int(rng.choice([0, 0, 0, 1, 2])), True, np.zeros(N_ACTIONS, np.float32))


@pytest.fixture(params=CASES)
def settings(request, make_settings):
    has_image, *overrides = CASES[request.param]
    return make_settings(has_image, *OPTIONS, *overrides)


def drive(settings, maps_folder, entry_of, seeds):
    """Drive races side by side; what was seen of each, its rollout, and what an environment shows at its end."""
    games = InProcessGames(len(seeds), settings.game, settings.observation, maps_folder)
    for game in range(len(seeds)):
        games.begin(game, entry_of("ring" if game else "straight"))
    seen, races, last = [[] for _ in seeds], {}, {}
    while len(races) < len(seeds):
        received = games.recv()
        for game, race in received.ended.items():
            races[game] = race.copy()
            last[game] = race_spaces(settings).views.last_state(race.columns)
        for row, game in enumerate(received.ids.tolist()):
            seen[game].append((received.images[row], received.floats[row]))
        decided = [decision(settings, seeds[game], len(seen[game]) - 1) for game in received.ids.tolist()]
        if decided:
            q_values = np.stack([one.q_values for one in decided])
            actions = np.array([one.action for one in decided])
            games.send(received.ids, BatchDecision(actions, np.ones(len(actions), dtype=bool), q_values))
    for game in range(len(seeds)):
        seen[game].append(last[game])
    return seen, [races[game] for game in range(len(seeds))]


def reward(race):
    race.rewards = np.arange(1, race.n_actions + 1, dtype=np.float32)
    race.potentials = np.zeros(race.n_actions + 1, np.float32)
    return race


def test_drivers_and_learners_read_the_same_network(settings, maps_folder, entry_of, open_socket_game):
    seeds = (3, 5)
    seen, races = drive(settings, maps_folder, entry_of, seeds)
    spaces = race_spaces(settings)
    assert seen[0][0][0].shape == spaces.image_shape
    assert seen[0][0][1].shape == (spaces.n_floats,)

    buffer, _ = make_memory(settings, race_spaces(settings))
    for race, of_race in zip(races, seen, strict=True):
        n_actions = race.n_actions
        of_race[n_actions:-1] = []  # a decision in the very finish led nowhere
        rows = rows_of_race(reward(race), settings)
        assert rows.frames.shape[1:] == (1, *spaces.image_size_px)
        read = buffer.storage.get(buffer.extend(rows))
        for t in range(n_actions):
            next_t = t + int(rows.n_steps[t])
            np.testing.assert_array_equal(read.state_img[t], of_race[t][0])
            np.testing.assert_array_equal(read.state_float[t], of_race[t][1])
            np.testing.assert_array_equal(read.next_state_img[t], of_race[next_t][0])
            np.testing.assert_array_equal(read.next_state_float[t], of_race[next_t][1])

    with open_socket_game(settings) as manager:
        for seed, of_race, name in zip(seeds, seen, ("straight", "ring"), strict=True):
            through_socket = []

            def policy(image, floats, seed=seed, through_socket=through_socket):
                through_socket.append((image.copy(), floats.copy()))
                return decision(settings, seed, len(through_socket) - 1)

            manager.rollout(entry_of(name), policy)
            for ours, theirs in zip(of_race[:-1], through_socket, strict=False):
                np.testing.assert_array_equal(ours[0], theirs[0])
                np.testing.assert_array_equal(ours[1], theirs[1])
            assert len(through_socket) >= len(of_race) - 1


def test_a_race_in_fragments_is_the_race(settings, maps_folder, entry_of):
    _, (race, _) = drive(settings, maps_folder, entry_of, (3, 5))
    cutter, parts = FragmentCutter.of_settings(settings), []
    for n_decided in range(1, race.n_actions):
        cutter.n_decided = n_decided
        if cutter.n_to_hand_on >= 9:
            states, fragment = cutter.cut()
            columns = {
                name: column[states.start : states.stop - (len(column) == race.n_actions)]
                for name, column in race.columns.items()
            }
            parts.append(Race(columns, race.facts.with_changes(fragment=fragment, terminated=False)))
    assert len(parts) > 2
    parts.append(Race(race.columns, race.facts.with_changes(fragment=cutter.end(race.n_actions))))

    def stored(parts):
        sides = make_memory(settings, race_spaces(settings))
        for part in parts:
            reward(part).rewards += part.facts.new.race_row
            fill_buffer_from_rollout_with_n_steps_rule(*sides, part, settings)
        index = torch.cat([side.storage.index for side in sides]).sort().values
        return sides[0].storage.get(index)

    whole, joined = stored([race]), stored(parts)
    assert len(whole.index) == len(joined.index) == race.n_actions
    for name in ("state_img", "state_float", "action", "n_steps", "next_state_img", "next_state_float"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name), err_msg=name)
    for name in ("around", "earned"):
        np.testing.assert_array_equal(joined.entries[name], whole.entries[name], err_msg=name)
