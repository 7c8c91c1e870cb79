"""The figures of docs/mini_races.rst, each made by the function of its name."""

import matplotlib.pyplot as plt
import numpy as np
import torch

from trackmania_rl.agents.iqn import quantile_huber_loss
from trackmania_rl.experience_replay.mini_races import MiniRaceRules

plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "figure.autolayout": True})
DURATION_ACTIONS = 100


def cuts() -> None:
    """Show transitions of three steps at several places of a mini-race of ten actions."""
    duration, n_steps = 10, 3
    _, axes = plt.subplots(figsize=(7, 2.6))
    for row, elapsed in enumerate((0, 3, 6, 8, 9)):
        counted = min(n_steps, duration - elapsed)
        is_terminal = elapsed + counted == duration
        axes.plot([0, duration], [row, row], color="0.85", linewidth=6, solid_capstyle="butt")
        axes.plot([elapsed, elapsed + counted], [row, row], color="tab:blue", linewidth=6, solid_capstyle="butt")
        if counted < n_steps:
            axes.plot([duration, elapsed + n_steps], [row, row], color="tab:red", linewidth=6, solid_capstyle="butt")
        told = "nothing follows" if is_terminal else f"then the value with {duration - elapsed - counted} actions left"
        axes.text(13.2, row, f"{counted} rewards, {told}", va="center")
    axes.axvline(duration, color="0.3", linewidth=1)
    axes.set_yticks(range(5), [f"time elapsed {elapsed}" for elapsed in (0, 3, 6, 8, 9)])
    axes.set_xlim(0, 32)
    axes.set_xticks(range(0, 13, 2))
    axes.set_xlabel("actions of the mini-race (blue: what counts; red: cut off)", loc="left")
    axes.invert_yaxis()


def elapsed() -> None:
    """Count the elapsed times that the rules of the default configuration draw, and those of even draws."""
    _, axes = plt.subplots(figsize=(7, 2.6))
    generator = torch.Generator().manual_seed(0)
    for label, longer in (("0", 0), ("40", 40)):
        rules = MiniRaceRules(1.0, DURATION_ACTIONS, longer)
        times = rules.draw_elapsed_actions(1_000_000, generator)
        share = torch.bincount(times, minlength=DURATION_ACTIONS) / len(times)
        axes.step(range(DURATION_ACTIONS), 100 * share, where="mid", label=label)
    axes.set_xlabel("time elapsed, actions")
    axes.set_ylabel("drawn, %")
    axes.set_yscale("log")
    axes.set_yticks((0.5, 1, 2, 5), ("0.5", "1", "2", "5"))
    axes.minorticks_off()
    axes.legend(title="oversample_long_term_steps", frameon=False)


def loss() -> None:
    """Draw the loss against the error for three quantiles."""
    _, axes = plt.subplots(figsize=(7, 2.6))
    errors = torch.linspace(-2, 2, 401)[:, None]  # (B, 1): target less prediction
    for tau in (0.1, 0.5, 0.9):
        losses = quantile_huber_loss(errors, torch.zeros_like(errors), torch.full((1, 1), tau), kappa=0.3)
        axes.plot(errors[:, 0], losses, label=f"tau = {tau}")
    axes.set_xlabel("target less prediction")
    axes.set_ylabel("loss (kappa = 0.3)")
    axes.legend(frameon=False)


def quantiles() -> None:
    """Draw the quantile functions of a safe and of a risky action, and what they say as distributions."""
    tau = np.linspace(0.005, 0.995, 199)
    safe = 4.6 + 0.12 * np.log(tau / (1 - tau))
    risky = np.where(tau < 0.25, 1.5 + 2.0 * tau, 5.1 + 0.1 * np.log(tau / (1 - tau)))
    _, (curves, densities) = plt.subplots(1, 2, figsize=(7, 2.8))
    for label, returns in (("brakes", safe), ("does not", risky)):
        curves.plot(tau, returns, label=f"{label}: mean {returns.mean():.2f}")
        densities.hist(returns, bins=np.linspace(1, 6, 60).tolist(), alpha=0.6, label=label)
    curves.set_xlabel("tau")
    curves.set_ylabel("return")
    curves.legend(frameon=False)
    densities.set_xlabel("return")
    densities.set_yticks([])
    densities.set_ylabel("how likely")
