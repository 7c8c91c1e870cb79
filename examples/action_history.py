"""A part that sends less from a worker: the learner rebuilds the previous actions in each state from the actions.

    python scripts/train.py --set run_name=shorter --workers 127.0.0.1:8470 \
        --set sample_compressor=examples.action_history:DropActionHistory

It shows the two functions of such a part; the bytes are 2 % fewer, as the compression finds most repetitions itself.
"""

import numpy as np

from trackmania_rl.channels.over_grpc import Arrays, SampleCompressor
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation import PREVIOUS_ACTIONS, ObservationLayout
from trackmania_rl.settings import Settings

FIRST_HISTORY = "first_history"
"""Previous actions in the first state, the only ones that are sent."""


class DropActionHistory(SampleCompressor):
    """Drops the block `previous_actions` of all states but the first one."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        layout = ObservationLayout(settings.observation, settings.game.actions)
        self._history = layout[PREVIOUS_ACTIONS]
        self._actions = actions_of_game(settings.game)

    def compress(self, columns: Arrays) -> Arrays:
        """Return the columns with narrower states."""
        floats = columns["state_float"]
        shorter = np.delete(floats, self._history, axis=1)
        return {**columns, "state_float": shorter, FIRST_HISTORY: floats[0, self._history]}

    def decompress(self, columns: Arrays) -> Arrays:
        """Insert the last actions before each state."""
        columns = dict(columns)
        shown = self._actions.shown(columns["actions"]).astype(np.float32)
        taken = np.concatenate([columns.pop(FIRST_HISTORY).ravel(), shown.ravel()])
        n_floats = self._history.stop - self._history.start
        histories = np.lib.stride_tricks.sliding_window_view(taken, n_floats)[:: shown.shape[1]]
        before, behind = np.split(columns["state_float"], [self._history.start], axis=1)
        return {**columns, "state_float": np.concatenate([before, histories, behind], axis=1)}
