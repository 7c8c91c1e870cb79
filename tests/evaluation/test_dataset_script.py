"""`scripts/tools/dataset.py` as its users meet it."""

import functools

import numpy as np
import pytest

FORWARD = "0.00 press up\n"


@pytest.fixture
def dataset(script, tmp_path, monkeypatch):
    """`dataset(*words)` runs a command line; returns exit code, output and errors."""
    pytest.importorskip("minari", reason='python -m pip install "minari[hdf5]"')
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return functools.partial(script, "tools/dataset")


def test_a_drivers_races_are_recorded_by_one_command(dataset, run_folder, run_settings):
    import minari

    code, output, errors = dataset("record", run_folder, "--races", 3, "--forced-actions", 4, "--id", "tested/bend-v0")
    assert code == 0, errors
    lines = output.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [f"{run_folder} on bend"] * 3
    assert "wrote" in lines[3]
    assert "minari/tested/bend-v0: 3 races" in lines[3]
    theirs = minari.load_dataset("tested/bend-v0")
    first, second, third = theirs
    assert all(episode.terminations[-1] for episode in theirs)
    assert set(first.actions.tolist()) == {0}, "the first race is the driver's own"
    assert second.actions[:4].tolist() != third.actions[:4].tolist(), "the others begin in ways of their own"
    assert second.infos["action_was_greedy"].sum() < len(second)

    env = theirs.recover_environment()
    assert env.observation_space == theirs.observation_space
    assert env.unwrapped.settings.reward == run_settings.reward
    for episode in theirs:
        observation, _ = env.reset(options={"map": "bend"})
        for t, action in enumerate(episode.actions):
            assert observation.tobytes() == episode.observations[t].tobytes()
            observation, reward, terminated, truncated, _ = env.step(action)
            assert (terminated, truncated) == (episode.terminations[t], episode.truncations[t])
            assert np.float32(reward) == pytest.approx(episode.rewards[t], abs=1e-6)
        assert observation.tobytes() == episode.observations[-1].tobytes()
    env.close()


def test_inputs_are_recorded_and_looked_at(dataset, run_folder, maps_folder, repository_root, tmp_path):
    inputs = tmp_path / "forward.inputs"
    inputs.write_text(FORWARD)
    asleep = tmp_path / "asleep.inputs"
    asleep.write_text("0.00 press up\n0.40 rel up")
    config, line = run_folder / "settings.toml", maps_folder / "curve.npy"
    record = ("record", inputs, asleep, "--map", line, "--config", config, "--folder", tmp_path / "mine")
    code, output, errors = dataset(*record, "--finished-only", "--id", "tested/curve-v0")
    assert code == 0, errors
    assert f"{inputs} on curve: 0:" in output
    assert f"{asleep} on curve: cut off after" in output
    assert "m, left out" in output
    assert "tested/curve-v0: 1 races" in output
    folder = tmp_path / "mine" / "tested" / "curve-v0"
    code, output, errors = dataset("info", folder, "--config", config)
    assert code == 0, errors
    for shown in ("tested/curve-v0", "TrackMania/Race-v0", "(184,)", "Discrete(12)", "1, of which 1 finished"):
        assert shown in output
    assert f"{config} can learn from it: offline = '{folder}'" in output
    code, _, errors = dataset("info", folder, "--config", config, "--set", "one_every_n_zone_centers_in_inputs=10")
    assert code == 78
    assert "one_every_n_zone_centers_in_inputs is 20 there and 10 here" in errors
