"""What the learner makes of fragments: actions count as they come, a race when it ends."""

import json
from typing import Any

from tensordict import TensorDictBase

from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.race.fragments import RaceInFragments
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.replay import StoreRaces

from .conftest import MakeRace, MakeRun


class Seen(Hook):
    """Notes how many actions it is shown, and where."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def batch_process(self, race: TensorDictBase) -> None:
        self.seen.append(("batch_process", len(race)))

    def post_steps_log(self, race: TensorDictBase) -> dict[str, float]:
        self.seen.append(("post_steps_log", len(race)))
        return {"seen": 1.0}

    def post_steps(self) -> None:
        self.seen.append(("post_steps", 0))


class SeenInFragments(Seen):
    """Sees fragments, too."""

    takes_fragments = True


def fragments_of(race: ReceivedRollout, n_steps: int, n_actions: int) -> list[ReceivedRollout]:
    """A race as a collector hands it on that cuts it every so many actions."""
    results, stats = race.rollout_results, race.end_race_stats
    in_fragments, fragments = RaceInFragments(n_steps), []
    told_under_way = {name: stats[name] for name in ("map_name", "track", "is_explo", "fill_buffer")}
    for n_decided in range(1, len(results["actions"])):
        in_fragments.n_decided = n_decided
        if in_fragments.n_to_hand_on == n_actions:
            states, fragment = in_fragments.cut()
            part: dict[str, Any] = {"furthest_zone_idx": 1}
            for name in results.keys() - {"race_time", "furthest_zone_idx"}:
                is_of_states = len(results[name]) > len(results["actions"])
                part[name] = results[name][states.start : states.stop - (not is_of_states)]
            fragments.append(ReceivedRollout(0, part, {**told_under_way, "fragment": fragment}))
    last = in_fragments.end(len(results["actions"]))
    return [*fragments, ReceivedRollout(0, results, {**stats, "fragment": last})]


def test_actions_count_as_they_come_and_a_race_when_it_ends(make_run: MakeRun, make_race: MakeRace) -> None:
    whole, at_ends, seen = Seen(), Seen(), SeenInFragments()
    race = make_race(60, True)
    of_whole = make_run([whole], name="whole")
    of_whole.train_on([race])
    run = make_run([at_ends, seen], name="in fragments")
    fragments = fragments_of(race, n_steps=3, n_actions=20)
    assert [fragment.is_under_way for fragment in fragments] == [True, True, False]
    statistics, store = run.context.statistics, run.hook(StoreRaces)
    for fragment, n_frames, n_stored in zip(fragments, (20, 40, 60), (18, 38, 60), strict=True):
        run.train_on([fragment])
        assert statistics.frames_total == run.trainer.collected_frames == n_frames
        assert run.run_state.frames_total == n_frames
        assert store.transitions_stored == len(run.buffer) + len(run.buffer_test) == n_stored
        assert statistics.races_total == (n_frames == 60)
    assert of_whole.agent.updates - 1 <= run.agent.updates <= of_whole.agent.updates
    points = ("batch_process", "post_steps", "post_steps_log")
    assert whole.seen == [(point, 60 * (point != "post_steps")) for point in points]
    assert seen.seen == [(point, 20 * (point != "post_steps")) for point in points] * 3
    of_whole_race = [("batch_process", 60), ("post_steps", 0), ("post_steps_log", 20)]
    assert at_ends.seen == [("post_steps", 0)] * 2 + of_whole_race
    lines = [
        [json.loads(line) for line in one.context.folder.races.read_text().splitlines()] for one in (of_whole, run)
    ]
    for line in (line for of_run in lines for line in of_run):
        del line["wall_s"]
    assert lines[0] == lines[1]
    for one in (of_whole, run):
        assert [file.name for file in one.context.folder.best_runs.iterdir()] == ["valley_3000"]
    best = [one.context.statistics.maps["valley"].explored.state_dict() for one in (of_whole, run)]
    assert best[0] == best[1]


def test_a_race_that_is_not_learned_from_counts_as_well(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on(fragments_of(make_race(60, False, fill_buffer=False), n_steps=3, n_actions=7))
    assert (run.context.statistics.frames_total, run.context.statistics.races_total) == (60, 1)
    assert len(run.buffer) == 0
