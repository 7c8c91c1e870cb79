"""One race whose states are made of state blobs."""

import numpy as np

from trackmania_rl.protocol.state_blob import HEAD_BYTES, STATE_HEAD_DTYPE, new_state_blob
from trackmania_rl.race.races import Races
from trackmania_rl.settings import MapEntry

RACE = np.zeros(1, dtype=np.int64)


ENTRY = MapEntry(map_name="made up", is_explo=True, fill_buffer=True)


class OneRace:
    """`Races` with K = 1, at its start."""

    def __init__(self, game, layout, zones):
        self.races, self._game = Races(1, game, layout), game
        self.begin(zones)

    def begin(self, zones):
        self.races.begin(0, ENTRY, zones, None, self._game)

    def act(self, action):
        self.races.act(0, action, True, np.zeros(1, dtype=np.float32))

    def see(self, blob):
        """Observe a state; without an action since the last one, in its place."""
        heads = np.frombuffer(blob, "<u4", count=HEAD_BYTES // 4)[None].copy()
        self.races.observe(RACE, 50 * self.races.rows[0], heads)
        seen = self.races.newest(0)
        return seen._replace(floats=seen.floats.copy(), car=seen.car.copy())

    def see_car_at(self, position_m):
        blob = new_state_blob(1, 1)
        np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)[0]["position_m"] = position_m
        return self.see(bytes(blob))
