"""The wire between game and client: messages, state blobs and input scripts."""
