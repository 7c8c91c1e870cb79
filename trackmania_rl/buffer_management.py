"""Conversion from races to transitions in the replay buffers."""

from trackmania_rl.experience_replay.memory import fill_buffer_from_rollout_with_n_steps_rule

__all__ = ["fill_buffer_from_rollout_with_n_steps_rule"]
