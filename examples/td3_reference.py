"""Twin Delayed DDPG in one file: everything that happens, from top to bottom.

    python examples/td3_reference.py --seed 1 --total-timesteps 15000

It needs torch, numpy and gymnasium and nothing else, and is the yardstick of the package: given the same
weights, batches and noise, both compute the same targets, losses and new weights.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods".
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Every number of the run; each is a command-line option of the same name."""

    env_id: str = "Pendulum-v1"
    """Gymnasium id of an environment with vector observations and bounded Box actions."""
    seed: int = 1
    """Seed of weights, exploration, replay and environment."""
    total_timesteps: int = 15_000
    """Environment steps to train for."""
    hidden: int = 64
    """Width of the two hidden layers of every network."""
    buffer_size: int = 20_000
    """Transitions kept for replay."""
    learning_starts: int = 1_000
    """Steps taken at random before the first update."""
    batch_size: int = 128
    """Transitions an update learns from."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    gamma: float = 0.99
    """Discount."""
    tau: float = 0.005
    """How far the target networks move whenever the actor is updated."""
    policy_delay: int = 2
    """Updates of the critics for each update of the actor and of the targets."""
    target_noise: float = 0.2
    """Deviation of the noise that smooths the target policy."""
    target_noise_clip: float = 0.5
    """Where that noise is cut off."""
    exploration_sigma: float = 0.1
    """Deviation of the noise added to actions while collecting."""


class Agent(nn.Module):
    """An actor whose actions lie in [-1, 1], two critics, and slow copies of all three."""

    def __init__(self, obs_size: int, action_size: int, cfg: Config) -> None:
        super().__init__()
        self.actor = nn.Sequential(*mlp(obs_size, cfg.hidden, action_size), nn.Tanh())
        self.critics = nn.ModuleList(mlp(obs_size + action_size, cfg.hidden, 1) for _ in range(2))
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers with ReLU."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def values(critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
    """Q(obs, actions) of every critic, `[critics, batch]`."""
    rows = torch.cat([obs, actions], dim=1)
    return torch.stack([critic(rows).squeeze(-1) for critic in critics])


class Optimizers:
    """One Adam each for the critics and the actor, and how often they have been used."""

    def __init__(self, agent: Agent, cfg: Config) -> None:
        self.critics = torch.optim.Adam(agent.critics.parameters(), lr=cfg.learning_rate)
        self.actor = torch.optim.Adam(agent.actor.parameters(), lr=cfg.learning_rate)
        self.updates = 0


@torch.no_grad()
def compute_target(agent: Agent, batch: dict[str, Tensor], noise: Tensor, cfg: Config) -> Tensor:
    """r + discount · min Q(s', π(s') + clipped noise); `discount` is 0 where s' is terminal."""
    noise = (noise * cfg.target_noise).clamp(-cfg.target_noise_clip, cfg.target_noise_clip)
    actions = (agent.target_actor(batch["next_obs"]) + noise).clamp(-1.0, 1.0)
    lowest = values(agent.target_critics, batch["next_obs"], actions).amin(0)
    return batch["rewards"] + batch["discount"] * lowest


def update(
    agent: Agent, optimizers: Optimizers, batch: dict[str, Tensor], noise: Tensor, cfg: Config
) -> dict[str, Tensor]:
    """One gradient step of the critics and, every second time, of the actor. `noise` is standard normal."""
    target = compute_target(agent, batch, noise, cfg)
    errors = values(agent.critics, batch["obs"], batch["actions"]) - target
    critic_loss = 0.5 * errors.square().mean(1).sum()
    step(optimizers.critics, critic_loss)
    losses = {"critic_loss": critic_loss.detach(), "target": target}

    optimizers.updates += 1
    if optimizers.updates % cfg.policy_delay == 0:
        rows = torch.cat([batch["obs"], agent.actor(batch["obs"])], dim=1)
        actor_loss = -agent.critics[0](rows).mean()
        step(optimizers.actor, actor_loss)
        losses["actor_loss"] = actor_loss.detach()
        follow(agent.target_critics, agent.critics, cfg.tau)
        follow(agent.target_actor, agent.actor, cfg.tau)
    return losses


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, tau: float) -> None:
    """Move a target network towards the learned one."""
    for target, learned in zip(slow.parameters(), fast.parameters(), strict=True):
        target.lerp_(learned, tau)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of one optimiser."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Replay:
    """The last `size` transitions, the oldest overwritten first."""

    def __init__(self, size: int, obs_size: int, action_size: int) -> None:
        self.columns = {
            "obs": torch.zeros(size, obs_size),
            "actions": torch.zeros(size, action_size),
            "rewards": torch.zeros(size),
            "next_obs": torch.zeros(size, obs_size),
            "discount": torch.zeros(size),
        }
        self.size, self.added = size, 0

    def add(self, **transition: object) -> None:
        """Keep one transition."""
        for name, value in transition.items():
            self.columns[name][self.added % self.size] = torch.as_tensor(value, dtype=torch.float32)
        self.added += 1

    def sample(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Transitions drawn uniformly."""
        rows = torch.randint(min(self.added, self.size), (count,), generator=generator)
        return {name: column[rows] for name, column in self.columns.items()}


def train(cfg: Config) -> tuple[Agent, list[float]]:
    """Train an agent; returns it with the returns of all training episodes, in order."""
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    env = gym.make(cfg.env_id)
    obs_size, action_size = env.observation_space.shape[0], env.action_space.shape[0]
    low, high = env.action_space.low, env.action_space.high
    agent = Agent(obs_size, action_size, cfg)
    optimizers = Optimizers(agent, cfg)
    replay = Replay(cfg.buffer_size, obs_size, action_size)

    obs, _ = env.reset(seed=cfg.seed)
    episode_return, episode_returns = 0.0, []
    losses: dict[str, Tensor] = {}
    started = time.perf_counter()
    for global_step in range(1, cfg.total_timesteps + 1):
        if global_step <= cfg.learning_starts:
            action = torch.rand(action_size, generator=generator) * 2 - 1
        else:
            with torch.no_grad():
                row = torch.as_tensor(obs, dtype=torch.float32)[None]
                noise = cfg.exploration_sigma * torch.randn(action_size, generator=generator)
                action = (agent.actor(row)[0] + noise).clamp(-1.0, 1.0)
        env_action = low + (action.numpy() + 1) * 0.5 * (high - low)
        next_obs, reward, terminated, truncated, _ = env.step(env_action)
        # A time limit is not the end of the world: only a terminal state is worth nothing.
        discount = 0.0 if terminated else cfg.gamma
        replay.add(obs=obs, actions=action, rewards=reward, next_obs=next_obs, discount=discount)
        obs = next_obs
        episode_return += float(reward)
        if terminated or truncated:
            episode_returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()
        if global_step > cfg.learning_starts:
            noise = torch.randn(cfg.batch_size, action_size, generator=generator)
            losses = update(agent, optimizers, replay.sample(cfg.batch_size, generator), noise, cfg)
        if global_step % max(1, cfg.total_timesteps // 20) == 0:
            report(global_step, episode_returns, losses, started)
    env.close()
    return agent, episode_returns


def report(global_step: int, episode_returns: list[float], losses: dict[str, Tensor], started: float) -> None:
    """One line on how training goes; the return is the mean of the last 20 episodes."""
    mean_return = np.mean(episode_returns[-20:]) if episode_returns else float("nan")
    speed = global_step / (time.perf_counter() - started)
    parts = " ".join(f"{name}={value.mean().item():.4f}" for name, value in losses.items())
    print(f"step={global_step} return={mean_return:.1f} steps_per_second={speed:.0f} {parts}", flush=True)


def parse_config() -> Config:
    """A config from the command line: one option a field."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    for field in fields(Config):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    return Config(**vars(parser.parse_args()))


def main() -> None:
    """Train with the options given and say how it ended."""
    torch.set_num_threads(1)  # networks this small are slower with more
    cfg = parse_config()
    _, episode_returns = train(cfg)
    mean_return = np.mean(episode_returns[-20:]) if episode_returns else float("nan")
    print(f"finished: env={cfg.env_id} episodes={len(episode_returns)} mean_return={mean_return:.1f}")


if __name__ == "__main__":
    main()
