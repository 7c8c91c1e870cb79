"""Conversion of races to transitions in the replay buffers."""

from trackmania_rl.experience_replay.n_step_rule import fill_buffer_from_rollout_with_n_steps_rule

__all__ = ["fill_buffer_from_rollout_with_n_steps_rule"]
