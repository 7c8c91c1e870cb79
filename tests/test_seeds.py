import json

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.race.race import set_stream_state, stream_state
from trackmania_rl.seeds import SeedTree, read_seed


def test_a_stream_depends_only_on_its_name_and_the_seed():
    first, second = SeedTree(7), SeedTree(7)
    second.rng("collector-3")
    second.integer("learner")
    np.testing.assert_array_equal(first.rng("collector-0").random(5), second.rng("collector-0").random(5))
    names = [f"collector-{i}" for i in range(50)] + ["learner"]
    integers = {SeedTree(seed).integer(name) for seed in (0, 1) for name in names}
    assert len(integers) == 2 * len(names)
    assert all(0 <= integer < 2**63 for integer in integers), "torch takes no larger ones"
    # A changed number would silently change every published run.
    assert SeedTree(0).integer("learner") == 8286761094900702593
    with pytest.raises(ValueError, match="non-negative"):
        SeedTree(-1).sequence("learner")


def test_a_name_is_used_once():
    seeds = SeedTree(3)
    seeds.integer("learner")
    for ask in (seeds.integer, seeds.rng, seeds.sequence):
        with pytest.raises(UserError, match="the stream 'learner' is in use"):
            ask("learner")
    assert SeedTree(3).integer("learner") > 0


def test_settings_in_use_are_written_down(tmp_path):
    seeds = SeedTree(3)
    learner_integer = seeds.integer("learner")
    seeds.rng("collector-0")
    seeds.write_json(tmp_path / "seeds.json")
    record = json.loads((tmp_path / "seeds.json").read_text())
    assert record["seed"] == 3
    assert record["integers"]["learner"] == learner_integer
    assert sorted(record["integers"]) == ["collector-0", "learner"]
    assert read_seed(tmp_path / "seeds.json") == 3
    (tmp_path / "seeds.json").write_text(json.dumps(record | {"seed": 4}))
    with pytest.raises(UserError, match="draws other numbers for collector-0, learner"):
        read_seed(tmp_path / "seeds.json")
    (tmp_path / "seeds.json").write_text("{}")
    with pytest.raises(UserError, match=r"is no seeds\.json"):
        read_seed(tmp_path / "seeds.json")


def test_a_stream_goes_on_where_its_state_was_taken():
    stream, other = SeedTree(3).rng("explorer"), SeedTree(4).rng("explorer")
    stream.random(5)
    stream.integers(7, dtype="uint32")  # half of a draw is kept for the next one
    state = stream_state(stream)
    assert len(state) < 256
    expected = stream.random(4), stream.integers(7, size=3, dtype="uint32")
    set_stream_state(other, state)
    assert (other.random(4) == expected[0]).all()
    assert (other.integers(7, size=3, dtype="uint32") == expected[1]).all()


@pytest.mark.parametrize("state", ["", "{}", "7", '{"bit_generator": "PCG64"}', '{"bit_generator": "MT19937"}'])
def test_other_texts_than_a_streams_state_are_refused(state):
    with pytest.raises(ValueError):  # noqa: PT011  the text may be the JSON module's
        set_stream_state(np.random.default_rng(1), state)
