"""An env of your own as tensors, and PPO on a thousand copies of it, on a GPU if there is one.

    python examples/batched_env.py [--total-timesteps 500000] [--num-envs 1024] [--device auto]

A point on a plane is to be flown to a goal in gusts of wind. The class below holds the rules and nothing
else: what a first state is, what a step does, what is seen. Episodes, resets, time limits, seeds, statistics
and exact resume come with the backend. With `--import batched_env` the env works from the command line too:

    axiomrl train --import batched_env --algo ppo --env-id Gusts-v0 --env.backend batched --num-envs 1024
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import rl_training
from rl_training.envs.batched import BatchedEnv, State, Uniform, fork, register_batched_env


@register_batched_env("Gusts-v0", max_episode_steps=100)
class Gusts(BatchedEnv):
    """Thrust in two directions; every step costs the distance to the goal, and arriving ends the episode."""

    dt, drag, radius = 0.1, 0.1, 0.15

    def __init__(self, device: torch.device, *, wind: float = 0.3) -> None:
        super().__init__(device)
        self.wind = wind
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._corner = Uniform([-2.0, -2.0], [2.0, 2.0], device)
        self._gust = Uniform([-1.0, -1.0], [1.0, 1.0], device)

    def start(self, seeds: Tensor) -> State:
        """At rest, somewhere; the goal is the origin. The seed is kept for the wind to come."""
        place = self._corner(seeds).float()
        return {
            "place": place,
            "speed": torch.zeros_like(place),
            "seed": seeds,
            "time": torch.zeros_like(seeds),
        }

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """What is random at step t of an episode follows from its seed and t: no generator, any device."""
        gusts = self._gust(fork(state["seed"], state["time"])).float()
        speed = (1 - self.drag) * state["speed"] + self.dt * (actions.clamp(-1.0, 1.0) + self.wind * gusts)
        place = state["place"] + self.dt * speed
        distance = place.norm(dim=1)
        after = {"place": place, "speed": speed, "seed": state["seed"], "time": state["time"] + 1}
        return after, -self.dt * distance, distance < self.radius

    def observe(self, state: State) -> Tensor:
        """Where, and how fast."""
        return torch.cat([state["place"], state["speed"]], dim=1)


def main() -> None:
    """Train and say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--total-timesteps", type=int, default=500_000)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output-dir", default="runs")
    args = parser.parse_args()
    agent = rl_training.PPO(
        env_id="Gusts-v0",
        env={"backend": "batched"},
        num_envs=args.num_envs,
        total_timesteps=args.total_timesteps,
        device=args.device,
        output_dir=args.output_dir,
        threads=1,
        num_steps=32,
        gamma=0.97,
        learning_rate=1e-3,
        evaluation={"every_steps": 0, "num_envs": 64},
    )
    before = agent.evaluate(num_episodes=64)["return_mean"]
    agent.learn()
    after = agent.evaluate(num_episodes=64)["return_mean"]
    print(f"mean return over 64 episodes: {before:.2f} before training, {after:.2f} after")


if __name__ == "__main__":
    main()
