"""This machine's own paths and names. The simulated game needs none of them; leave them as they are for it."""

# First TCP port of the game instances; each takes one more: collector 0's games (games_per_collector), then collector
# 1's, and so on. All must be free. Range: 1024 to 65535.
base_tmi_port = 8478

# Command line that starts one game instance on Linux, with {port} in it, such as that of the script that ships, which
# finds Wine or Steam's Proton: "sh ~/PROJECT/scripts/start_game_linux.sh {port}". Empty: not set.
game_command = ""

# Folder of the game's own documents (Tracks, Config), usually Documents/TrackMania in your folder. Empty: not set.
trackmania_base_path = ""

# TMLoader's program, and its profile that loads TMInterface (Windows). Empty path: where its installer puts it.
tmloader_path = ""
tmloader_profile_name = "default"

# The login of your online account. Empty: the game asks.
username = ""
