"""The learning algorithm: network, loss and exploration. No sockets, no processes."""
