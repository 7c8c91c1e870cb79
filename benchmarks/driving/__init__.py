"""How well agents drive: yardsticks per track, and the runner that holds agents against them."""
