"""Soft actor-critic over the keyboard's actions (Christodoulou 2019, arXiv:1910.07207).

Use it with `scripts/train.py --preset discrete_sac`.
"""

from functools import partial

from torchrl.objectives import DiscreteSACLoss

from trackmania_rl.agents.torchrl_agent import TorchRLAgent

based_on = "config_sac.py"
run_name = "discrete_sac"

# A few percent random actions are enough: less entropy than torchrl's nearly uniform default.
agent = partial(TorchRLAgent, loss=DiscreteSACLoss, alpha_init=0.002, min_alpha=1e-5, target_entropy_weight=0.2)

actions = "keys"
