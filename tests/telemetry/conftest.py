"""What a training tells of itself, as tests change it."""

from trackmania_rl.telemetry.run_status import RunStatus


def status_of(**changes):
    values = {
        "is_over": False,
        "told_at_s": 1000.0,
        "ticked_at_s": 990.0,
        "raced_at_s": 980.0,
        "saved_at_s": None,
        "silence_s": 60.0,
        "stall_s": 900.0,
        "figures": {"frames_total": 12_345.0},
        "losses": {"loss": 0.5},
    }
    return RunStatus(**(values | changes))
