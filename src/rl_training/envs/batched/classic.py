"""Gymnasium's classic control on tensors: the same equations in the same precision.

The arithmetic follows Gymnasium's step by step, single precision included where a NumPy scalar brings it in,
so that trajectories agree far beyond what a policy could see. Episodes start from other states for the same
seed: reproducing NumPy's generator on a GPU would cost more than all the rest.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.envs.batched.env import BatchedEnv, State, register_batched_env
from rl_training.envs.batched.random import Uniform


@register_batched_env("CartPole-v0", max_episode_steps=200)
@register_batched_env("CartPole-v1", max_episode_steps=500)
class CartPole(BatchedEnv):
    """A pole on a cart that is pushed left or right (Barto, Sutton and Anderson, 1983)."""

    gravity, mass_pole, mass, half_length = 9.8, 0.1, 1.1, 0.5
    force, dt = 10.0, 0.02
    max_angle, max_position = 12 * 2 * math.pi / 360, 2.4

    def __init__(self, device: torch.device, *, sutton_barto_reward: bool = False) -> None:
        super().__init__(device)
        self.sutton_barto_reward = sutton_barto_reward
        high = np.array([2 * self.max_position, np.inf, 2 * self.max_angle, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self._first = Uniform([-0.05] * 4, [0.05] * 4, device)

    def start(self, seeds: Tensor) -> State:
        """Nearly upright, nearly at rest."""
        return {"physics": self._first(seeds)}

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """One step of Euler's method; over when the pole leans or the cart leaves."""
        x, speed, angle, turn = state["physics"].unbind(1)
        sin, cos = angle.sin(), angle.cos()
        pole = self.mass_pole * self.half_length
        push = actions.double() * (2 * self.force) - self.force
        drive = (push + pole * turn.square() * sin) / self.mass
        lever = self.half_length * (4.0 / 3.0 - self.mass_pole * cos.square() / self.mass)
        turn_rate = (self.gravity * sin - cos * drive) / lever
        rate = drive - pole * turn_rate * cos / self.mass
        rates = torch.stack([speed, rate, turn, turn_rate], dim=1)
        physics = torch.add(state["physics"], rates, alpha=self.dt)
        x, angle = physics[:, 0], physics[:, 2]
        terminated = (x.abs() > self.max_position) | (angle.abs() > self.max_angle)
        rewards = -terminated.double() if self.sutton_barto_reward else torch.ones_like(x)
        return {"physics": physics}, rewards, terminated

    def observe(self, state: State) -> Tensor:
        """Position, speed, angle, angular speed."""
        return state["physics"].float()


@register_batched_env("Pendulum-v1", max_episode_steps=200)
class Pendulum(BatchedEnv):
    """A pendulum to be swung up and held by a weak motor."""

    max_speed, max_torque, dt = 8.0, 2.0, 0.05

    def __init__(self, device: torch.device, *, g: float = 10.0) -> None:
        super().__init__(device)
        self.g = g
        high = np.array([1.0, 1.0, self.max_speed], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-self.max_torque, self.max_torque, (1,), np.float32)
        self._first = Uniform([-math.pi, -1.0], [math.pi, 1.0], device)

    def start(self, seeds: Tensor) -> State:
        """At any angle, turning slowly."""
        return {"physics": self._first(seeds)}

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """Costs are of the state before the step; there is no terminal state."""
        angle, speed = state["physics"].unbind(1)
        torque = actions.float().squeeze(1).clamp(-self.max_torque, self.max_torque)
        lean = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        costs = lean.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = speed + (1.5 * self.g * angle.sin() + 3.0 * torque) * self.dt
        speed = speed.clamp(-self.max_speed, self.max_speed)
        physics = torch.stack([angle + speed * self.dt, speed], dim=1)
        return {"physics": physics}, -costs, torch.zeros_like(angle, dtype=torch.bool)

    def observe(self, state: State) -> Tensor:
        """Cosine and sine of the angle, angular speed."""
        angle, speed = state["physics"].unbind(1)
        return torch.stack([angle.cos(), angle.sin(), speed], dim=1).float()


@register_batched_env("Acrobot-v1", max_episode_steps=500)
class Acrobot(BatchedEnv):
    """Two links, a motor between them: swing the tip above a line (Sutton, 1996; equations of the book)."""

    dt, gravity = 0.2, 9.8
    max_speed = (4 * math.pi, 9 * math.pi)

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        high = np.array([1.0, 1.0, 1.0, 1.0, *self.max_speed], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)
        self._first = Uniform([-0.1] * 4, [0.1] * 4, device)
        self._max_speed = torch.tensor(self.max_speed, dtype=torch.float64, device=device)

    def start(self, seeds: Tensor) -> State:
        """Hanging down, nearly at rest."""
        return {"physics": self._first(seeds)}

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """One step of the classical Runge-Kutta method."""
        before, torque, dt = state["physics"], actions.double() - 1.0, self.dt
        k1 = self._rates(before, torque)
        k2 = self._rates(before + dt / 2 * k1, torque)
        k3 = self._rates(before + dt / 2 * k2, torque)
        k4 = self._rates(before + dt * k3, torque)
        after = before + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        angles, speeds = after[:, :2], after[:, 2:]
        angles = angles - 2 * math.pi * (angles / (2 * math.pi)).round()
        physics = torch.cat([angles, speeds.clamp(-self._max_speed, self._max_speed)], dim=1)
        first, second = angles.unbind(1)
        terminated = -first.cos() - (second + first).cos() > 1.0
        return {"physics": physics}, terminated.double() - 1.0, terminated

    def _rates(self, physics: Tensor, torque: Tensor) -> Tensor:
        """Time derivatives. Links have mass and length 1, their centres are halfway, their inertia is 1."""
        angle1, angle2, speed1, speed2 = physics.unbind(1)
        sin2, cos2 = angle2.sin(), angle2.cos()
        d1 = 3.5 + cos2
        d2 = 1.25 + 0.5 * cos2
        phi2 = 0.5 * self.gravity * (angle1 + angle2 - math.pi / 2).cos()
        phi1 = -0.5 * speed2.square() * sin2 - speed2 * speed1 * sin2
        phi1 = phi1 + 1.5 * self.gravity * (angle1 - math.pi / 2).cos() + phi2
        ratio = d2 / d1
        rate2 = (torque + ratio * phi1 - 0.5 * speed1.square() * sin2 - phi2) / (1.25 - d2 * ratio)
        rate1 = -(d2 * rate2 + phi1) / d1
        return torch.stack([speed1, speed2, rate1, rate2], dim=1)

    def observe(self, state: State) -> Tensor:
        """Cosine and sine of both angles, both angular speeds."""
        angles, speeds = state["physics"][:, :2], state["physics"][:, 2:]
        turns = torch.stack([angles.cos(), angles.sin()], dim=2).flatten(1)
        return torch.cat([turns, speeds], dim=1).float()


@register_batched_env("MountainCar-v0", max_episode_steps=200)
class MountainCar(BatchedEnv):
    """A car in a valley, too weak to drive straight out of it (Moore, 1990)."""

    min_position, max_position, max_speed, slope = -1.2, 0.6, 0.07, 0.0025
    goal_position, power = 0.5, 0.001

    def __init__(self, device: torch.device, *, goal_velocity: float = 0) -> None:
        super().__init__(device)
        self.goal_velocity = goal_velocity
        low = np.array([self.min_position, -self.max_speed], np.float32)
        high = np.array([self.max_position, self.max_speed], np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)
        self._first = Uniform([-0.6, 0.0], [-0.4, 0.0], device)

    def start(self, seeds: Tensor) -> State:
        """At rest near the bottom."""
        return {"physics": self._first(seeds)}

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """A step costs 1 until the flag is reached."""
        position, speed = state["physics"].unbind(1)
        pull = (3 * position).cos() * -self.slope
        physics, terminated = self._drive(position, speed + ((actions - 1).double() * self.power + pull))
        return {"physics": physics}, -torch.ones_like(position), terminated

    def _drive(self, position: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        """Where a car of that speed gets; the left end stops it."""
        speed = speed.clamp(-self.max_speed, self.max_speed)
        position = (position + speed).clamp(self.min_position, self.max_position)
        speed = torch.where(position <= self.min_position, speed.clamp(min=0.0), speed)
        arrived = (position >= self.goal_position) & (speed >= self.goal_velocity)
        return torch.stack([position, speed], dim=1), arrived

    def observe(self, state: State) -> Tensor:
        """Position and speed."""
        return state["physics"].float()


@register_batched_env("MountainCarContinuous-v0", max_episode_steps=999)
class MountainCarContinuous(MountainCar):
    """The same car with an accelerator: fuel costs, the flag pays. Gymnasium keeps it in single precision."""

    goal_position, power = 0.45, 0.0015

    def __init__(self, device: torch.device, *, goal_velocity: float = 0) -> None:
        super().__init__(device, goal_velocity=goal_velocity)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def start(self, seeds: Tensor) -> State:
        """At rest near the bottom."""
        return {"physics": self._first(seeds).float()}

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """The flag is worth 100, a step costs a tenth of the square of the action, clipped or not."""
        position, speed = state["physics"].unbind(1)
        action = actions.float().squeeze(1)
        pull = ((3 * position).double().cos() * self.slope).float()
        physics, terminated = self._drive(position, speed + (action.clamp(-1.0, 1.0) * self.power - pull))
        return {"physics": physics}, 100.0 * terminated.double() - 0.1 * action.double().square(), terminated
