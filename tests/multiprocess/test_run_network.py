"""The run's network, and that what learns with it follows from the run's seed."""

from collections.abc import Callable

import torch

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.learner import Learning


def test_the_network_reads_the_floats_and_their_waves(live: LiveSettings, layout: ObservationLayout) -> None:
    network = make_network(live.current, layout, SeedTree(1))
    n_read = next(network.float_feature_extractor.children()).in_features
    assert n_read == layout.float_input_dim + 2 * len(layout.waves) > layout.float_input_dim


def test_the_seed_decides_on_the_networks_first_weights(live: LiveSettings, layout: ObservationLayout) -> None:
    one, again, other = (flatten_parameters(make_network(live.current, layout, SeedTree(seed))) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_seed_decides_on_what_learner_and_replay_memory_draw(make_learning: Callable[..., Learning]) -> None:
    def random_states(seed: int) -> list[bytes]:
        learning = make_learning(seed)
        generators = (learning.learner._generator, learning.buffer.generator)
        return [generator.get_state().numpy().tobytes() for generator in generators]

    assert random_states(1) == random_states(1)
    assert len({*random_states(1), *random_states(2)}) == 4
