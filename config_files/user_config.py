"""Paths and names of this machine. The simulated game needs none."""

# First TCP port of the game instances, 1024 to 65535; each takes the next: collector 0's games, then collector 1's, and
# so on. All must be free.
base_tmi_port = 8478

# Command line that starts one game instance on Linux, with {port}: "sh ~/PROJECT/scripts/start_game_linux.sh
# {port}" finds Wine or Steam's Proton. Empty: not set.
game_command = ""

# Folder of the game's documents (Tracks, Config), usually Documents/TrackMania. Empty: not set.
trackmania_base_path = ""

# TMLoader's program, and its profile that loads TMInterface (Windows). Empty path: the installer's default.
tmloader_path = ""
tmloader_profile_name = "default"

# Login of the online account. Empty: the game asks.
username = ""
