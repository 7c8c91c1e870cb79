"""Races in real time, as in TMRL: the game continues while the driver computes its action (Real-Time Gym)."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any, Final

import gymnasium
import numpy as np
from rtgym.envs.real_time_env import DEFAULT_CONFIG_DICT, RealTimeEnv, RealTimeGymInterface
from typing_extensions import override

from trackmania_rl.games.envs.race_env import RaceEnv
from trackmania_rl.race.actions import Action, actions_of_game

CUT_OFF: Final = "cut_off"
"""Entry of an interface's `info`: whether the race was cut off; rtgym has one kind of end."""
FURTHEST_BEHIND_S: Final = 1.0
"""A game further behind the clock (standby) does not catch up."""


class RealTimeInterface(RealTimeGymInterface):  # type: ignore[misc]  # rtgym has no types
    """Race that a thread steps with the newest action.

    A game in this process is stepped by the clock. A game behind a socket has its own clock, `running_speed`.

    Args:
        env: closed with this object.
    """

    def __init__(self, env: RaceEnv) -> None:
        self.env = env
        game = env.settings.game
        self._step_s = game.ms_per_action / 1000 / game.running_speed if game.is_in_process else 0.0
        self._forward = actions_of_game(game).forward
        self._lock = threading.Lock()  # for all below
        self._action: Action = self._forward
        self._newest: tuple[Any, dict[str, Any]] = (None, {})
        self._reward = 0.0
        self._is_over = True
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_prepared = False

    def send_control(self, control: Any) -> None:
        """Hold an action from the game's next step on; a race's first action starts its clock."""
        if control is None:
            return
        with self._lock:
            self._action = control
        if self._thread is None and not self._is_over:
            self._thread = threading.Thread(target=self._drive, name="real-time game", daemon=True)
            self._thread.start()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        """Begin a race; the car stays at the start line until the first action."""
        self._halt()
        if not self._is_prepared:  # the first step compiles for seconds
            self._is_prepared = True
            self.env.reset(options=options)
            self.env.step(self._forward)
        shown, info = self.env.reset(seed=seed, options=options)
        self._action = self._forward
        self._newest = (shown, info)
        self._reward = 0.0
        self._is_over = False
        return [shown], info

    @override
    def wait(self) -> None:
        self._halt()

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], float, bool, dict[str, Any]]:
        """Return the newest state, and the reward since the last call.

        Raises:
            Exception: the error of the game.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            (shown, info), reward, is_over = self._newest, self._reward, self._is_over
            self._reward = 0.0
        return [shown], reward, is_over, info

    @override
    def get_observation_space(self) -> gymnasium.spaces.Tuple:
        return gymnasium.spaces.Tuple((self.env.observation_space,))

    @override
    def get_action_space(self) -> gymnasium.Space[Any]:
        return self.env.action_space

    @override
    def get_default_action(self) -> Any:
        return np.asarray(self._forward, dtype=self.env.action_space.dtype)[()]

    def close(self) -> None:
        """End the game."""
        self._halt()
        self.env.close()

    def _halt(self) -> None:
        with self._lock:
            self._is_over = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _drive(self) -> None:
        due_s = time.perf_counter()
        while True:
            due_s = max(due_s + self._step_s, time.perf_counter() - FURTHEST_BEHIND_S)
            time.sleep(max(0.0, due_s - time.perf_counter()))
            with self._lock:
                action = self._action
                is_over = self._is_over
            if is_over:
                return
            try:
                shown, reward, terminated, truncated, info = self.env.step(action)
            except Exception as error:  # raised again in the driver's thread
                with self._lock:
                    self._error = error
                return
            with self._lock:
                self._newest = shown, info | {CUT_OFF: truncated}
                self._reward += float(reward)
                self._is_over |= terminated or truncated


class RealTimeRaceEnv(RealTimeEnv):  # type: ignore[misc]  # rtgym has no types
    """Races on one game in real time.

    `step` returns at the end of a time step; its action is held during the next one, while the driver computes the one
    after. Reward, `info`, `terminated` and `truncated` are as of `RaceEnv`.

    * Observation: a tuple of `RaceEnv`'s and the last `act_buf_len` actions; the newest is not made yet.
    * `benchmarks()`: rtgym's mean durations and deviations, in seconds.

    Args:
        env: closed with this environment.
        time_step_duration: seconds; None for one action of the configuration.
        start_obs_capture: seconds after a time step's beginning at which its state is taken; None for its end.
        act_buf_len: number of actions in the observation.
        benchmark: whether durations are measured.
        options: rtgym's, such as `time_step_timeout_factor`, time steps after which a slow driver's clock is reset with
            a warning, and `ep_max_length`, time steps after which a race is truncated.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        env: RaceEnv,
        *,
        time_step_duration: float | None = None,
        start_obs_capture: float | None = None,
        act_buf_len: int = 2,
        benchmark: bool = True,
        **options: Any,
    ) -> None:
        game = env.settings.game
        duration_s = time_step_duration or game.ms_per_action / 1000 / game.running_speed
        self._race = env
        super().__init__(
            DEFAULT_CONFIG_DICT
            | {
                "interface": RealTimeInterface,
                "interface_args": (env,),
                "time_step_duration": duration_s,
                "start_obs_capture": duration_s if start_obs_capture is None else start_obs_capture,
                "time_step_timeout_factor": 1.0,
                "ep_max_length": np.inf,
                "act_buf_len": act_buf_len,
                "benchmark": benchmark,
                "wait_on_done": True,
            }
            | options
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Begin a race and start its clock. Arguments and errors are as of `RaceEnv.reset`."""
        gymnasium.Env.reset(self, seed=seed)
        return copy.deepcopy(super().reset(seed=seed, options=options))  # rtgym may return its newest state twice

    def step(self, action: Any) -> tuple[tuple[Any, ...], float, bool, bool, dict[str, Any]]:
        """Wait for the end of the time step; hold the action in the next one."""
        shown, reward, is_over, truncated, info = copy.deepcopy(super().step(action))
        cut_off = info.pop(CUT_OFF, False)
        return shown, reward, is_over and not cut_off, truncated or (is_over and cut_off), info

    def close(self) -> None:
        """End the game."""
        self._join_thread()
        self.interface.close()
