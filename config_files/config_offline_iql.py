"""Implicit Q-learning from data sets alone, without a game (Kostrikov et al. 2021, arXiv:2110.06169).

Record or export races first (docs/datasets.rst), then `scripts/train.py --preset offline_iql --max-updates 6000`.
"""

from functools import partial

from torchrl.objectives import DiscreteIQLLoss

from trackmania_rl.agents.torchrl_agent import TorchRLAgent

based_on = "config_discrete_sac.py"
run_name = "offline_iql"

# An action is copied exp(temperature x advantage) times as often; advantages are some hundredths.
agent = partial(TorchRLAgent, loss=DiscreteIQLLoss, temperature=50.0, expectile=0.7)

# The data set; there are no games.
offline = "trackmania/valley-driver-v0"
n_collectors = 0
