"""Games that serve one client, each in a thread of this process: the simulated server's, and one with our plugin."""

import contextlib
import socket
import threading

from raw_client import SERVED_WITHIN_S, RawClient, int32s

from trackmania_rl.simulator.server.server import GameServer


class ServedGame:
    """A game in a thread of its own, and the clients that have connected to it.

    Args:
        simulated: its maps and its race.
        port: where it listens.
        run: plays until `_ask_to_stop` is called.
    """

    def __init__(self, simulated, port, run):
        self.simulated = simulated
        self.port = port
        self.clients = []
        self.thread = threading.Thread(target=run)
        self.thread.start()

    @property
    def race(self):
        return self.simulated.race

    def connect(self):
        self.clients.append(RawClient(self.port))
        return self.clients[-1]

    def close(self):
        """Stop the game; fails the test if it does not stop."""
        self._ask_to_stop()
        for client in self.clients:
            client.socket.close()
        self.thread.join(SERVED_WITHIN_S)
        assert not self.thread.is_alive()

    def _ask_to_stop(self):
        raise NotImplementedError


class ServedServer(ServedGame):
    """The simulated game's own server."""

    def __init__(self, simulated):
        self.server = GameServer(simulated, port=0)
        super().__init__(simulated, self.server.port, self.server.run)

    def _ask_to_stop(self):
        self.server.stop()


class ServedPlugin(ServedGame):
    """A game with our plugin, whose script looks at its sockets once in a frame."""

    def __init__(self, game, port):
        self.game = game
        super().__init__(game.game, port, game.run)

    def _ask_to_stop(self):
        self.game.is_stopping = True
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.socket.settimeout(0.1)
                client.send(int32s(13))  # a wait without an end ends only with its client's goodbye, or for a newcomer
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=0.1).close()

    def close(self):
        """Stop, and check that the script never did anything that harms a real game."""
        super().close()
        counters = self.game.host.counters()
        assert counters.reads_that_block == 0, "the script read bytes that had not come: a real game would stand still"
        assert counters.script_exceptions == 0
        assert counters.open_sockets == 0
