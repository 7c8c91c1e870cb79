"""Agents with torchrl losses: `agent = "trackmania_rl.agents.torchrl_agent:SAC"`.

`SAC`, `DiscreteSAC`, `TD3`, `DDPG`, `CrossQ`, `REDQ`, `DQN`, `IQL` and `DiscreteIQL` are at the end of this module, and
`PPO` and `A2C`, which learn on-policy with the memory `RolloutStore`. Options go to the loss:
`agent = functools.partial(TorchRLAgent, loss=SACLoss, num_qvalue_nets=3)`.

Shapes: B batch, F floats, A actions to choose among, D numbers per action, P weights.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, set_interaction_type
from tensordict.nn.probabilistic import InteractionType
from torch import Tensor, nn
from torchrl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    CrossQLoss,
    DDPGLoss,
    DiscreteIQLLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    LossModule,
    REDQLoss,
    SACLoss,
    SoftUpdate,
    TD3Loss,
    ValueEstimators,
)
from typing_extensions import override

from trackmania_rl.agents import actor_critic
from trackmania_rl.agents.agent import Agent, Layer, ProcessLosses, TransitionErrors
from trackmania_rl.agents.devices import pick_device
from trackmania_rl.agents.inference import GREEDY, ActionChooser, Actor, Exploration
from trackmania_rl.agents.networks import RunningNormalization
from trackmania_rl.agents.weights import evaluation_mode
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import AgentSettings, ExplorationSettings, Settings, SettingsError

MakeNetwork = Callable[[AgentSettings, Spaces], TensorDictModuleBase]

_q_of_actions: Final = functools.partial(actor_critic.values_of_actions, out_key="action_value")
_value_on_policy: Final = functools.partial(actor_critic.value_of_state, is_on_policy=True)
_q_of_actions_iql: Final = functools.partial(actor_critic.values_of_actions, out_key="state_action_value")
NETWORKS: Final[Mapping[type[LossModule], Mapping[str, MakeNetwork]]] = {
    SACLoss: {"actor_network": actor_critic.gaussian_actor, "qvalue_network": actor_critic.value_of_action},
    REDQLoss: {"actor_network": actor_critic.gaussian_actor, "qvalue_network": actor_critic.value_of_action},
    CrossQLoss: {
        "actor_network": actor_critic.gaussian_actor,
        "qvalue_network": functools.partial(actor_critic.value_of_action, is_renormalized=True),
    },
    TD3Loss: {"actor_network": actor_critic.deterministic_actor, "qvalue_network": actor_critic.value_of_action},
    DDPGLoss: {"actor_network": actor_critic.deterministic_actor, "value_network": actor_critic.value_of_action},
    IQLLoss: {
        "actor_network": actor_critic.gaussian_actor,
        "qvalue_network": actor_critic.value_of_action,
        "value_network": actor_critic.value_of_state,
    },
    DiscreteSACLoss: {"actor_network": actor_critic.categorical_actor, "qvalue_network": _q_of_actions},
    DiscreteIQLLoss: {
        "actor_network": actor_critic.categorical_actor,
        "qvalue_network": _q_of_actions_iql,
        "value_network": actor_critic.value_of_state,
    },
    DQNLoss: {"value_network": actor_critic.greedy_actor},
    ClipPPOLoss: {"actor_network": actor_critic.on_policy_actor, "critic_network": _value_on_policy},
    A2CLoss: {"actor_network": actor_critic.on_policy_actor, "critic_network": _value_on_policy},
}
"""Each loss's networks, by argument names; the first is the actor."""
FOR_NUMBERS: Final = (SACLoss, REDQLoss, CrossQLoss, TD3Loss, DDPGLoss, IQLLoss)
"""Losses for continuous actions."""
ON_POLICY: Final = (ClipPPOLoss, A2CLoss)
"""Losses for continuous and for discrete actions; all others but `FOR_NUMBERS` are for discrete actions."""
GAE_LAMBDA: Final = 0.95
"""Default for the option `lmbda` (Schulman et al. 2016, arXiv:1506.02438)."""
EXPLORATION_NOISE: Final = 0.1
"""Standard deviation of TD3's and DDPG's noise, in units of half the action range (Fujimoto et al. 2018)."""


class OwnRandomState:
    """Random stream that replaces torch's global generators, with a GPU's, within a context."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(self._gpus):
            torch.manual_seed(seed)
            self.state = self._read()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from this stream within the context."""
        with torch.random.fork_rng(self._gpus):
            torch.set_rng_state(self.state[0].cpu())
            for gpu, state in zip(self._gpus, self.state[1:], strict=True):
                torch.cuda.set_rng_state(state.cpu(), gpu)
            yield
            self.state = self._read()

    def _read(self) -> list[Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpus)]


class TorchRLAgent:
    """The part `agent` for a `torchrl.objectives` loss; see `AgentBuilder`.

    Args:
        settings: run settings. Of the agent settings, `float_hidden_dim`, convolutions, `gamma_schedule` (one entry),
            `lr_schedule`, `adam_...`, `clip_grad_norm`, `soft_update_tau` and `evaluation_weights_decay` have effect.
        spaces: game spaces.
        seeds: run seeds.
        loss: a class in `NETWORKS`.
        normalize_observations: whether to normalize floats by running mean and standard deviation, and not by the
            spaces' constant ones; see `RunningNormalization`.
        options: arguments for the loss; for `ON_POLICY` also `lmbda`, for generalized advantage estimation.

    Raises:
        SettingsError: if the loss is not in `NETWORKS`, does not fit the actions, or does not take an option.
    """

    def __init__(
        self,
        settings: Settings,
        spaces: Spaces,
        seeds: SeedTree,
        *,
        loss: type[LossModule],
        normalize_observations: bool = False,
        **options: Any,
    ) -> None:
        if loss not in NETWORKS:
            names = ", ".join(known.__name__ for known in NETWORKS)
            raise SettingsError(f"agent: TorchRLAgent(loss={loss.__name__}): choose one of {names}")
        self._is_on_policy = loss in ON_POLICY
        if not self._is_on_policy and isinstance(spaces.action, Box) != (loss in FOR_NUMBERS):
            wanted = "numbers, Box(low, high, (D,))" if loss in FOR_NUMBERS else "a choice, Discrete(A)"
            raise SettingsError(
                f"agent: {loss.__name__} is for actions that are {wanted}, but the games take {spaces.action}: choose "
                f'another agent, or set actions = "{"analog" if loss in FOR_NUMBERS else "keys"}"'
            )
        self._gae_lambda = options.pop("lmbda", GAE_LAMBDA) if self._is_on_policy else 0.0
        unknown = sorted(options.keys() - inspect.signature(loss.__init__).parameters.keys())
        if unknown:
            raise SettingsError(f"agent: {loss.__name__} has no option {', '.join(unknown)}")
        if len(settings.agent.gamma_schedule) != 1:
            raise SettingsError(
                f"gamma_schedule = {settings.agent.gamma_schedule}: {loss.__name__} has one discount all the time; set "
                f"gamma_schedule = ((0, {settings.agent.gamma_schedule[0][1]}),)"
            )
        if settings.agent.demonstrations_margin > 0:
            raise SettingsError(f"demonstrations_margin: {loss.__name__} has no margin: set it to 0")
        self._settings, self._spaces = settings, spaces
        self._network_seed = seeds.integer("network")
        self._learner_seed = seeds.integer("learner")
        self._loss, self._options = loss, options
        self._normalize_observations = normalize_observations

    def make_network(self) -> TensorDictModuleBase:
        """Make the actor's network."""
        return self._make_networks()[0]

    def make_actor(self, network: nn.Module, device: torch.device, rng: np.random.Generator) -> TorchRLActor:
        """Make a `TorchRLActor`."""
        assert isinstance(network, TensorDictModuleBase)
        return TorchRLActor(network.to(device).eval(), self._spaces, self._settings.exploration, device, rng)

    def make_learner(self, network: nn.Module) -> TorchRLLearner:
        """Make a `TorchRLLearner`."""
        device = pick_device(self._settings.run.torch_device)
        seed = self._learner_seed
        network.to(device)  # before the loss takes it, so they share their buffers
        networks = [network, *self._make_networks()[1:]]
        named = dict(zip(NETWORKS[self._loss], networks, strict=True))
        with OwnRandomState(seed, torch.device("cpu"))():  # for the weights of further Q networks
            loss = self._loss(**named, **self._fitting_options())
        gamma = self._settings.agent.gamma_schedule[0][1]
        if self._is_on_policy:
            loss.make_value_estimator(ValueEstimators.GAE, gamma=gamma, lmbda=self._gae_lambda)
            on_policy = OnPolicyLoss(loss, self._spaces, device, seed, normalization_of(network))
            return OnPolicyLearner(on_policy, network, self._settings.agent)
        loss.make_value_estimator(ValueEstimators.TD0, gamma=gamma)
        getattr(loss, "target_entropy", None)  # creates a buffer that the checkpoint needs
        off_policy = OffPolicyLoss(loss, self._spaces, device, seed, normalization_of(network))
        return TorchRLLearner(off_policy, network, self._settings.agent)

    def _make_networks(self) -> list[Any]:
        spaces = self._spaces
        n_floats = self._spaces.n_floats
        if self._normalize_observations:
            spaces = replace(spaces, float_mean=(0.0,) * n_floats, float_std=(1.0,) * n_floats)
        with OwnRandomState(self._network_seed, torch.device("cpu"))():
            networks = [make(self._settings.agent, spaces) for make in NETWORKS[self._loss].values()]
        if self._normalize_observations:
            networks[0].normalization = RunningNormalization(n_floats)
        return networks

    def _fitting_options(self) -> dict[str, Any]:
        """Add the arguments that describe the actions to the options."""
        accepted = inspect.signature(self._loss.__init__).parameters
        spaces = self._spaces
        known: dict[str, Any] = {"action_space": "categorical", "num_actions": spaces.n_values}
        if isinstance(spaces.action, Box):
            known = {"action_spec": actor_critic.action_spec(spaces.action)}
        return {name: value for name, value in known.items() if name in accepted} | self._options


class TorchRLActor(Actor):
    """Actor by a torchrl actor, a network that reads the entries named by `actor_critic.state_keys`.

    Exploration draws from the actor's distribution, or adds noise to the action; value actors explore by the
    scheduled settings. A decision's values are NaN if the actor has none.
    """

    def __init__(
        self,
        network: TensorDictModuleBase,
        spaces: Spaces,
        exploration_settings: ExplorationSettings,
        device: torch.device,
        rng: np.random.Generator,
    ) -> None:
        self.network = network
        self.exploration_settings = exploration_settings
        self._spaces = spaces
        self._device = device
        self._random_state = OwnRandomState(int(rng.integers(2**63)), torch.device("cpu"))
        self._rng = rng
        self._chooser = ActionChooser(spaces.n_values, spaces.throttle_actions, rng)

    @override
    @torch.inference_mode()
    def act_batch(
        self,
        frames: npt.NDArray[np.uint8],
        floats: npt.NDArray[np.float32],
        explorations: Sequence[Exploration] | None = None,
    ) -> BatchDecision:
        explorations = explorations or [GREEDY] * len(floats)
        explores = np.array([exploration is not GREEDY for exploration in explorations])
        batch = self.states(torch.from_numpy(frames).to(self._device), torch.from_numpy(floats).to(self._device))
        with self._random_state():
            best = self.greedy(batch.clone(False))
        actions = self._of_space(best["action"])
        action_log_prob = np.full(len(floats), np.nan, dtype=np.float32)
        if explores.any():
            is_explored = explores.reshape(-1, *[1] * (actions.ndim - 1))
            explored, log_prob = self._explored(batch, best, explorations)
            actions = np.where(is_explored, explored, actions)
            action_log_prob = np.where(explores, log_prob, action_log_prob)
        return BatchDecision(actions, ~explores, self._values(best), action_log_prob)

    def states(self, frames: Tensor, floats: Tensor) -> TensorDict:
        """Return the network's entries from frames (B, S, H, W) uint8 and floats (B, F)."""
        entries = {"state_float": normalization_of(self.network)(floats), "state_img": frames}
        known = {name: entries[name] for name in actor_critic.state_keys(self._spaces)}
        return TensorDict(known, batch_size=[floats.shape[0]])

    def greedy(self, states: TensorDict) -> TensorDictBase:
        """Add the network's greedy decisions to states."""
        with set_interaction_type(InteractionType.DETERMINISTIC):
            decided: TensorDictBase = self.network(states)
        return decided

    def _explored(
        self, batch: TensorDict, best: TensorDictBase, explorations: Sequence[Exploration]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Return actions (B, ...) with exploration, and their log-probabilities (B,), NaN where none was computed."""
        unknown = np.full(len(explorations), np.nan, dtype=np.float32)
        if "chosen_action_value" in best:
            return self._chooser.choose(self._values(best), explorations), unknown
        if "action_log_prob" not in best:  # a deterministic actor
            space = self._spaces.action
            assert isinstance(space, Box)
            action = self._of_space(best["action"])
            std = EXPLORATION_NOISE * (space.high - space.low) / 2
            noisy = action + std * self._rng.standard_normal(action.shape, dtype=np.float32)
            return np.clip(noisy, space.low, space.high), unknown
        with self._random_state(), set_interaction_type(InteractionType.RANDOM):
            drawn = self.network(batch.clone(False))
        return self._of_space(drawn["action"]), drawn["action_log_prob"].float().cpu().numpy()

    def _of_space(self, actions: Tensor) -> npt.NDArray[Any]:
        return actions.cpu().numpy().astype(self._spaces.action_dtype).reshape(len(actions), *self._spaces.action_shape)

    def _values(self, decided: TensorDictBase) -> npt.NDArray[np.float32]:
        if "action_value" in decided:
            return decided["action_value"].float().cpu().numpy()
        return np.full((len(decided), self._spaces.n_values), np.nan, dtype=np.float32)


def normalization_of(network: nn.Module) -> nn.Module:
    """Return a driving network's running normalization; without one, the identity."""
    return getattr(network, "normalization", nn.Identity())


class OffPolicyLoss(LossModule):
    """A torchrl loss on batches of the replay memory."""

    reduction = "mean"  # over the batch

    def __init__(
        self, loss: LossModule, spaces: Spaces, device: torch.device, seed: int, normalization: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.loss = loss
        self.normalization = normalization or nn.Identity()  # of the driving network
        self.device = device
        self.random_state = OwnRandomState(seed, device)
        self._keys = actor_critic.state_keys(spaces)
        self.to(device)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses for B transitions; set the batch's `td_error` (B,), if the loss has one."""
        batch = self._as_torchrl_has_it(tensordict)
        with self.random_state():
            losses = self.loss(batch)
        if "td_error" in batch:
            tensordict.set("td_error", batch["td_error"].detach().reshape(len(batch)))
        return TensorDict({name: value for name, value in losses.items() if value.ndim == 0})

    def states(self, entries: Mapping[str, Tensor]) -> TensorDict:
        """Return B states' image and floats as the networks' input."""
        batch = {name: entries[name].to(self.device) for name in self._keys}
        batch["state_float"] = self.normalization(batch["state_float"])
        return TensorDict(batch, batch_size=[len(entries["state_float"])])

    def _as_torchrl_has_it(self, batch: TensorDictBase) -> TensorDict:
        """Return a batch with torchrl's names; the value estimator computes the discounts over n steps."""
        on_device = batch.to(self.device)
        terminated = (on_device["gamma_n"] == 0).unsqueeze(1)
        after = self.states({name: on_device[f"next_{name}"] for name in self._keys}).to_dict()
        after |= {"reward": on_device["reward"].unsqueeze(1), "terminated": terminated, "done": terminated}
        entries = {"action": on_device["action"]} | self.states(on_device).to_dict()
        entries |= {"next": after, "steps_to_next_obs": on_device["n_steps"].unsqueeze(1)}
        return TensorDict(entries, batch_size=batch.batch_size)


class OnPolicyLoss(OffPolicyLoss):
    """A torchrl loss on batches of a `RolloutStore`, which have advantages from `estimate_advantages`."""

    @torch.no_grad()
    def estimate_advantages(self, rollouts: TensorDictBase) -> TensorDictBase:
        """Add `advantage` (n, 1) and `value_target` (n, 1) to rollout transitions.

        The transitions are in time order, with `done` (n,) at each rollout's end.
        """
        batch = super()._as_torchrl_has_it(rollouts)
        batch["next", "done"] = rollouts["done"].to(self.device).unsqueeze(1)
        params = self.loss.critic_network_params.data
        self.loss.value_estimator(batch, params=params, target_params=params)
        estimated = {name: batch[name].to(rollouts.device) for name in ("advantage", "value_target")}
        return rollouts.copy().update(estimated)

    @override
    def _as_torchrl_has_it(self, batch: TensorDictBase) -> TensorDict:
        estimated = batch.select("advantage", "value_target", "action_log_prob").to(self.device)
        return super()._as_torchrl_has_it(batch).update(estimated)


class TorchRLLearner(Agent):
    """Agent with a torchrl loss and networks, Adam and torchrl's soft update; the network is the loss's actor."""

    loss_module: OffPolicyLoss

    def __init__(self, loss: OffPolicyLoss, network: nn.Module, settings: AgentSettings) -> None:
        super().__init__(loss, network, settings)
        self.explores_by_epsilon = isinstance(loss.loss, DQNLoss)
        self._parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(self._parameters, lr=0.0)
        has_target = any(name.startswith("target_") for name, _ in loss.loss.named_buffers())
        self._target = SoftUpdate(loss.loss, tau=settings.soft_update_tau) if has_target else None
        self._transitions_due = 0

    @override
    def apply_settings(self, settings: AgentSettings, learning_rate: float) -> None:
        super().apply_settings(settings, learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
            group["eps"] = settings.adam_epsilon
            group["betas"] = settings.adam_beta1, settings.adam_beta2
        if self._target is not None:
            self._target.eps = 1 - settings.soft_update_tau

    @override
    def update(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDictBase:
        """Make one update: loss, backward, clipping, optimizer step, target networks.

        A non-finite gradient is set to 0.
        """
        normalization = self.loss_module.normalization
        if isinstance(normalization, RunningNormalization):
            normalization.observe(batch["state_float"].to(self.loss_module.device))
        losses: TensorDictBase = self.loss_module(batch)
        if process_losses is not None:
            losses = process_losses(losses)
        total = torch.stack([value for name, value in losses.items() if name.startswith("loss")]).sum()
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self.settings.clip_grad_norm)
        is_not_finite = ~torch.isfinite(norm)
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(is_not_finite, 0.0)
        self.optimizer.step()
        interval = self.settings.number_memories_trained_on_between_target_network_updates
        n_moves, self._transitions_due = divmod(self._transitions_due + len(batch), interval)
        if self._target is not None:
            for _ in range(n_moves):
                self._target.step()
        self.updates += 1
        if isinstance(normalization, RunningNormalization):
            losses.set("observation_mean", normalization.mean.abs().mean())
            losses.set("observation_std", normalization.std.mean())
        return losses.set("grad_norm", norm).detach()

    @override
    def reset_partially(self) -> None:
        # The last layers, whose share differs, are not known.
        raise SettingsError("reset_every_n_frames_generated: an agent of torchrl has no resets: set it to 0")

    @override
    def layers(self) -> dict[str, Layer]:
        parameters = self.loss_module.loss.named_parameters()
        return {name: Layer(one.detach(), one.grad) for name, one in parameters if one.requires_grad}

    @override
    @torch.no_grad()
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor | None:
        network = self.evaluation_network
        with evaluation_mode(network), set_interaction_type(InteractionType.DETERMINISTIC):
            decided = network(self.loss_module.states({"state_img": img, "state_float": floats}))
        values: Tensor | None = decided.get("action_value", None)
        return None if values is None else values.float().unsqueeze(1)

    @override
    @torch.no_grad()
    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        loss = self.loss_module
        shown = batch.copy()
        random_state = list(loss.random_state.state)
        with evaluation_mode(loss):
            loss(shown)
        loss.random_state.state = random_state
        errors: Tensor | None = shown.get("td_error", None)
        return None if errors is None else TransitionErrors(errors.float(), None, None)

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "loss": {name: tensor for name, tensor in self.loss_module.state_dict().items() if torch.is_tensor(tensor)},
            "optimizer": self.optimizer.state_dict(),
            "random_state": list(self.loss_module.random_state.state),
            "transitions_due": self._transitions_due,
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self.loss_module.state_dict()
        own.update(state["loss"])
        self.loss_module.load_state_dict(own)
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])
        if len(state["random_state"]) == len(self.loss_module.random_state.state):  # else from another device type
            self.loss_module.random_state.state = list(state["random_state"])
        self._transitions_due = state["transitions_due"]


class OnPolicyLearner(TorchRLLearner):
    """Agent with an on-policy loss; has no errors for single transitions."""

    is_on_policy = True
    loss_module: OnPolicyLoss

    @override
    def estimate_advantages(self, rollouts: TensorDictBase) -> TensorDictBase:
        return self.loss_module.estimate_advantages(rollouts)

    @override
    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        return None


SAC: Final = functools.partial(TorchRLAgent, loss=SACLoss)
DiscreteSAC: Final = functools.partial(TorchRLAgent, loss=DiscreteSACLoss)
TD3: Final = functools.partial(TorchRLAgent, loss=TD3Loss)
DDPG: Final = functools.partial(TorchRLAgent, loss=DDPGLoss, delay_actor=True)
CrossQ: Final = functools.partial(TorchRLAgent, loss=CrossQLoss)
REDQ: Final = functools.partial(TorchRLAgent, loss=REDQLoss)
DQN: Final = functools.partial(TorchRLAgent, loss=DQNLoss)
IQL: Final = functools.partial(TorchRLAgent, loss=IQLLoss)
DiscreteIQL: Final = functools.partial(TorchRLAgent, loss=DiscreteIQLLoss)
PPO: Final = functools.partial(TorchRLAgent, loss=ClipPPOLoss, normalize_advantage=True)
A2C: Final = functools.partial(TorchRLAgent, loss=A2CLoss)
