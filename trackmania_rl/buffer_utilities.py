"""The train and test replay buffers, and the collate function that makes mini-races from their transitions."""

from trackmania_rl.experience_replay.mini_races import buffer_collate_function, make_buffers

__all__ = ["buffer_collate_function", "make_buffers"]
