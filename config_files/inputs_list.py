"""Actions of the agent.

An action is a set of keys held for its duration (50 ms by default). Changing order or number makes checkpoints and
published weights meaningless.
"""

inputs = (
    {"left": False, "right": False, "accelerate": True, "brake": False},  # 0 forward
    {"left": True, "right": False, "accelerate": True, "brake": False},  # 1 forward left
    {"left": False, "right": True, "accelerate": True, "brake": False},  # 2 forward right
    {"left": False, "right": False, "accelerate": False, "brake": False},  # 3 nothing
    {"left": True, "right": False, "accelerate": False, "brake": False},  # 4 left
    {"left": False, "right": True, "accelerate": False, "brake": False},  # 5 right
    {"left": False, "right": False, "accelerate": False, "brake": True},  # 6 brake
    {"left": True, "right": False, "accelerate": False, "brake": True},  # 7 brake left
    {"left": False, "right": True, "accelerate": False, "brake": True},  # 8 brake right
    {"left": False, "right": False, "accelerate": True, "brake": True},  # 9 brake and accelerate
    {"left": True, "right": False, "accelerate": True, "brake": True},  # 10 brake and accelerate left
    {"left": False, "right": True, "accelerate": True, "brake": True},  # 11 brake and accelerate right
)

# Index of the observation's action before the first one.
action_forward_idx = 0
