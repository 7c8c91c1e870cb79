"""The full-size configuration holds Linesight's published values, whatever becomes of the one it is based on."""

import pytest

from trackmania_rl.settings import load_settings

PUBLISHED = {
    # the game
    "image_width_px": 160,
    "image_height_px": 120,
    "frames_per_state": 1,
    "engine_ticks_per_action": 5,
    "running_speed": 80.0,
    "cutoff_race_longer_than_ms": 300_000,
    "cutoff_no_progress_within_ms": 2_000,
    "cutoff_progress_m": 0.5,
    "tmi_protection_timeout_s": 500.0,
    # the observation
    "n_prev_actions_in_inputs": 5,
    "n_zone_centers_in_inputs": 40,
    "one_every_n_zone_centers_in_inputs": 20,
    "distance_between_zone_centers_m": 0.5,
    "road_width_m": 90.0,
    "margin_to_announce_finish_m": 700.0,
    # the reward
    "constant_reward_per_ms": -6 / 5000,
    "reward_per_m_advanced_along_centerline": 5 / 500,
    "final_speed_reward_per_m_per_s": 0.0,
    "engineered_speedslide_reward_schedule": ((0, 0.0),),
    "engineered_neoslide_reward_schedule": ((0, 0.0),),
    "engineered_kamikaze_reward_schedule": ((0, 0.0),),
    "engineered_close_to_vcp_reward_schedule": ((0, 0.0),),
    "shaped_reward_dist_to_cur_vcp": -0.1,
    "shaped_reward_point_to_vcp_ahead": 0.0,
    # the replay buffer
    "batch_size": 512,
    "memory_size_schedule": ((0, 50_000), (5_000_000, 100_000), (7_000_000, 200_000)),
    "memory_size_start_learn_schedule": ((0, 20_000), (5_000_000, 75_000), (7_000_000, 150_000)),
    "number_times_single_memory_is_used_before_discard": 32.0,
    "buffer_test_ratio": 0.05,
    "n_steps": 3,
    "discard_non_greedy_actions_in_nsteps": True,
    "temporal_mini_race_duration_actions": 140,
    "oversample_long_term_steps": 40,
    "prio_alpha": 0.0,
    # the network
    "conv_channels": (16, 32, 64, 32),
    "conv_kernel_sizes": (4, 4, 3, 3),
    "conv_strides": (2, 2, 2, 1),
    "float_hidden_dim": 256,
    "dense_hidden_dimension": 1024,
    "iqn_embedding_dimension": 64,
    "iqn_n": 8,
    "iqn_k": 32,
    # learning
    "gamma_schedule": ((0, 0.999), (1_500_000, 0.999), (2_500_000, 1.0)),
    "lr_schedule": ((0, 1e-3), (3_000_000, 5e-5), (12_000_000, 5e-5), (15_000_000, 1e-5)),
    "iqn_kappa": 5e-3,
    "use_ddqn": False,
    "adam_epsilon": 1e-4,
    "weight_decay_lr_ratio": 1 / 50,
    "clip_grad_norm": 30.0,
    "soft_update_tau": 0.02,
    "number_memories_trained_on_between_target_network_updates": 2048,
    # exploring, and between processes
    "epsilon_schedule": ((0, 1.0), (50_000, 1.0), (300_000, 0.1), (3_000_000, 0.03)),
    "epsilon_boltzmann_schedule": ((0, 0.15), (3_000_000, 0.03)),
    "send_shared_network_every_n_batches": 10,
}

LIKE_LINESIGHT = {
    "network": "trackmania_rl.agents.iqn:IQN_Network",
    "hooks": (),
    "transforms": (),
    "schedule_stretch": 1.0,
    "fourier_wavelengths": {},
    "use_layer_norm": False,
    "quantile_factors_multiply": "features",
    "expected_reward_per_action": 0.0,
    "target_action": "max_of_each_quantile",
    "evaluation_weights_decay": 0.0,
    "random_action_throttle_probability": None,
    "reset_every_n_frames_generated": 0,
    "demonstrations": (),
    "demonstrations_share": 0.0,
}
"""Options that Linesight does not have, so that what runs is its algorithm."""


@pytest.mark.parametrize("values", [PUBLISHED, LIKE_LINESIGHT], ids=["published", "like Linesight"])
def test_the_full_size_configuration_is_linesights(repository_root, values):
    settings = load_settings(repository_root / "config_files" / "config_tmnf.py")
    assert {name: settings.flat()[name] for name in values} == values
    assert settings.game.ms_per_action == 50
    assert [entry.repeat for entry in settings.game.map_cycle] == [4, 1]
