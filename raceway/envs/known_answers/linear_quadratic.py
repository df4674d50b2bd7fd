"""Continuous control with linear dynamics and quadratic costs, which the Riccati equation solves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_fraction, check_positive
from raceway.errors import ConfigError

Array = np.ndarray
Matrix = Sequence[Sequence[float]] | Array

_MAX_ITERATIONS = 10_000


class LinearQuadratic(gym.Env):
    """The linear-quadratic regulator: x' = Ax + Bu + noise, and the reward of a step is -(|x|² + c|u|²).

    The best policy is u = -Kx with the `gain` K. An episode starts with every xᵢ uniform between -1 and 1. It never
    terminates: its registered time limit of 20 steps truncates, so that gain and value are those of the infinite
    horizon. They ignore the limit of the actions, which the best actions of the default system never reach: its K is at
    most 0.618, that of γ = 1.

    Args:
        dynamics: the matrix A, [n, n].
        control: the matrix B, [n, m]; the identity if None.
        action_cost: the weight c of the squared action in the cost.
        noise: the standard deviation of the noise of every xᵢ, which is Gaussian.
        action_limit: the largest |uᵢ|; larger actions are clipped.
    """

    def __init__(
        self,
        dynamics: Matrix = ((1.0,),),
        control: Matrix | None = None,
        action_cost: float = 1.0,
        noise: float = 0.0,
        action_limit: float = 1.0,
    ) -> None:
        self.dynamics = np.array(dynamics, float)
        num_dims = len(self.dynamics)
        self.control = np.eye(num_dims) if control is None else np.array(control, float)
        if self.dynamics.shape != (num_dims, num_dims) or num_dims == 0:
            raise ConfigError(f"dynamics must be a square matrix, not of shape {self.dynamics.shape}")
        if self.control.ndim != 2 or len(self.control) != num_dims or self.control.shape[1] == 0:
            raise ConfigError(f"control must be a matrix of {num_dims} rows, not of shape {self.control.shape}")
        self.action_cost = check_positive("cost of actions", action_cost)
        self.noise = noise if noise == 0 else check_positive("standard deviation of the noise", noise)
        limit = check_positive("limit of actions", action_limit)
        self.observation_space = spaces.Box(-np.inf, np.inf, (num_dims,), np.float32)
        self.action_space = spaces.Box(-limit, limit, (self.control.shape[1],), np.float32)
        self._limit, self._state = limit, np.zeros(num_dims)

    def gain(self, gamma: float) -> Array:
        """Return the matrix K of the best policy u = -Kx, [m, n].

        >>> LinearQuadratic().gain(gamma=1.0).round(3).tolist()  # 1 over the golden ratio
        [[0.618]]
        """
        return self._best_response(self._cost_matrix(gamma), gamma)

    def best_action(self, state: Array, gamma: float) -> Array:
        """Return the best actions in states [..., n], without the limit, [..., m]."""
        return -np.asarray(state, float) @ self.gain(gamma).T

    def value(self, state: Array, gamma: float) -> Array:
        """Return the values of states [..., n] under the best policy: -(xᵀPx + σ² tr(P) γ/(1-γ)), [...]."""
        state, cost = np.asarray(state, float), self._cost_matrix(gamma)
        noise_cost = 0.0
        if self.noise:
            noise_cost = math.inf if gamma == 1 else self.noise**2 * np.trace(cost) * gamma / (1 - gamma)
        return -(np.einsum("...i,ij,...j", state, cost, state) + noise_cost)

    def _cost_matrix(self, gamma: float) -> Array:
        """Return P, [n, n], of the discounted algebraic Riccati equation: P = I + cKᵀK + γ(A - BK)ᵀP(A - BK)."""
        check_fraction("discount factor", gamma)
        identity = np.eye(len(self.dynamics))
        cost = identity
        with np.errstate(over="ignore", invalid="ignore"):  # of costs that grow without a limit
            for _ in range(_MAX_ITERATIONS):
                gain = self._best_response(cost, gamma)
                closed = self.dynamics - self.control @ gain
                before, cost = cost, identity + self.action_cost * gain.T @ gain + gamma * closed.T @ cost @ closed
                if not np.isfinite(cost).all():
                    break
                if abs(cost - before).max() < 1e-12 * abs(cost).max():
                    return cost
        raise ConfigError(
            f"the value with gamma={gamma} is not finite, or takes more than {_MAX_ITERATIONS} iterations to compute: "
            "the dynamics grow, and the control does not stop them. Use a smaller gamma or another control matrix."
        )

    def _best_response(self, cost: Array, gamma: float) -> Array:
        """Return the K that minimises c|u|² + γx'ᵀPx', [m, n]."""
        weight = self.action_cost * np.eye(self.control.shape[1]) + gamma * self.control.T @ cost @ self.control
        return np.linalg.solve(weight, gamma * self.control.T @ cost @ self.dynamics)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-1, 1, self._state.shape)
        return self._state.astype(np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        action = np.clip(np.asarray(action, float), -self._limit, self._limit)
        reward = -(self._state @ self._state + self.action_cost * (action @ action))
        self._state = self.dynamics @ self._state + self.control @ action
        if self.noise:
            self._state = self._state + self.np_random.normal(0, self.noise, self._state.shape)
        return self._state.astype(np.float32), float(reward), False, False, {}
