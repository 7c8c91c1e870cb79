"""A game that somebody else has started, as a `GameLauncher`: it is used as it is, and left running."""

from __future__ import annotations

from trackmania_rl.tmi_interaction.launchers.launcher import GameLauncher


class RunningGame:
    """A game that listens already; whether it does shows when somebody connects.

    Args:
        like: the launcher that would start such a game; it says which port and maps there are, and is never started.
    """

    commands_on_connect: tuple[str, ...] = ()
    """None: whoever started the game has closed its console and logged in; `toggle_console` would open it."""

    def __init__(self, like: GameLauncher) -> None:
        self.port = like.port
        self._like = like

    def check_map(self, map_path: str) -> None:
        """See `GameLauncher.check_map`."""
        self._like.check_map(map_path)

    def map_argument(self, map_path: str) -> str:
        """See `GameLauncher.map_argument`."""
        return self._like.map_argument(map_path)

    def start(self) -> None:
        """See `GameLauncher.start`; it runs."""

    def is_alive(self) -> bool:
        """See `GameLauncher.is_alive`; nothing else is known."""
        return True

    def kill(self) -> None:
        """See `GameLauncher.kill`; it is not ours to end."""

    def show_window(self) -> None:
        """See `GameLauncher.show_window`; whoever started it sees to it."""

    def focus_window(self) -> None:
        """See `GameLauncher.focus_window`; likewise."""

    def wait_until_connectable(self, timeout_s: float) -> None:
        """See `GameLauncher.wait_until_connectable`."""
