"""The wire between a game instance and its client: messages, state blobs and input scripts."""
