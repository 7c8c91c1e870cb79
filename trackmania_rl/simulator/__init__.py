"""The simulated game: car, tracks, picture, race rules and the server that speaks the TMInterface-plugin protocol.

It shares only `trackmania_rl.protocol` with the client, as the real game would.
"""
