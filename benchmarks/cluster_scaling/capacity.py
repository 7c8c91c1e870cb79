"""How many collectors each part could serve alone: what fills first is the smallest of them."""

from __future__ import annotations

from benchmarks.cluster_scaling.simulation import BEATS_PER_S, RELAY_CALLS_PER_RACE
from benchmarks.cluster_scaling.workloads import Machines, Workload

WHAT_TO_CHANGE = {
    "learner": "a faster learner (GPU, smaller network) or a lower replay ratio; more collectors change nothing",
    "link in": "a faster network for the learner's machine, or smaller pictures",
    "link out": "a greater cluster_publish_every_s, or more collectors on fewer machines",
    "machine's link": "a faster network for that machine, or fewer collectors on it",
    "relay": "fewer collectors with more games each (games_per_collector)",
    "collectors": "more collectors: the learner still waits",
}


def collectors_served(workload: Workload, machines: Machines) -> dict[str, float]:
    """Reckon how many collectors, driving without a wait, fill each part.

    Returns:
        The number of collectors by part: "learner", "link in", "link out", "machine's link" (those of one machine) and
        "relay".
    """
    made_per_s = workload.collector_actions_per_s
    races_per_s = made_per_s / workload.rows_per_race
    calls_per_s = races_per_s * RELAY_CALLS_PER_RACE + BEATS_PER_S + 1 / workload.publish_every_s
    weights_bytes_per_s = workload.weights_bytes / workload.publish_every_s / machines.collectors_each
    one_link = machines.link_bytes_per_s / (made_per_s * workload.row_bytes)
    return {
        "learner": workload.learner_actions_per_s / made_per_s,
        "link in": one_link,
        "link out": machines.link_bytes_per_s / weights_bytes_per_s,
        "machine's link": one_link,
        "relay": machines.relay_calls_per_s / calls_per_s,
    }
