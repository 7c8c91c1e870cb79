"""The run's network, and that what learns with it follows from the run's seed."""

import torch

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings

from .conftest import MakeRun


def test_the_network_reads_the_floats_and_their_waves(live: LiveSettings, layout: ObservationLayout) -> None:
    network = make_network(live.current, race_spaces(live.current), SeedTree(1))
    n_read = next(network.float_feature_extractor.children()).in_features
    assert n_read == layout.float_input_dim + 2 * len(layout.waves) > layout.float_input_dim


def test_the_seed_decides_on_the_networks_first_weights(live: LiveSettings, layout: ObservationLayout) -> None:
    one, again, other = (
        flatten_parameters(make_network(live.current, race_spaces(live.current), SeedTree(seed))) for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_seed_decides_on_what_agent_and_replay_memory_draw(make_run: MakeRun) -> None:
    def random_states(name: str, seed: int) -> list[bytes]:
        run = make_run(name=name, seed=seed)
        generators = (run.agent.loss_module.generator, run.buffer.generator)
        return [generator.get_state().numpy().tobytes() for generator in generators]

    assert random_states("one", 1) == random_states("again", 1)
    assert len({*random_states("one", 1), *random_states("other", 2)}) == 4
