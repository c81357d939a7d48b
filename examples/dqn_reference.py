"""DQN in one file, with double Q-learning: everything that happens, from top to bottom.

    python examples/dqn_reference.py --seed 1 --total-timesteps 50000

It needs torch, numpy and gymnasium and nothing else, and is the yardstick of the package: given the same
weights and batches, both compute the same targets, losses and new weights.

Mnih et al. 2015, "Human-level control through deep reinforcement learning";
van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning".
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Every number of the run; each is a command-line option of the same name."""

    env_id: str = "CartPole-v1"
    """Gymnasium id of an environment with vector observations and Discrete actions."""
    seed: int = 1
    """Seed of weights, exploration, replay and environments."""
    total_timesteps: int = 50_000
    """Environment steps to train for, over all environments."""
    num_envs: int = 8
    """Environments stepped side by side."""
    buffer_size: int = 100_000
    """Transitions kept for replay."""
    learning_starts: int = 1_000
    """Steps taken at random before the first update (fewer if the whole run is shorter)."""
    train_every: int = 256
    """Steps over all environments between two rounds of updates."""
    gradient_steps: int = 128
    """Updates a round."""
    batch_size: int = 64
    """Transitions an update learns from."""
    learning_rate: float = 2.3e-3
    """Adam's step size at the start; it falls linearly to zero."""
    gamma: float = 0.99
    """Discount."""
    target_update_every: int = 128
    """Updates between two copies of the network to the target network."""
    double: bool = True
    """Choose the next action by the learning network and value it by the target network."""
    exploration_initial: float = 1.0
    """Chance of a random action at the start."""
    exploration_final: float = 0.04
    """Chance of a random action after the schedule."""
    exploration_fraction: float = 0.16
    """The part of the run over which that chance falls."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""


class QNetwork(nn.Sequential):
    """The value of every action, from two hidden ReLU layers."""

    def __init__(self, obs_size: int, num_actions: int, width: int = 128) -> None:
        super().__init__(
            nn.Linear(obs_size, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, num_actions),
        )


class Agent:
    """The network that learns, the one that targets come from, and the optimiser."""

    def __init__(self, obs_size: int, num_actions: int, cfg: Config) -> None:
        self.cfg = cfg
        self.q = QNetwork(obs_size, num_actions)
        self.target = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=cfg.learning_rate)
        self.num_updates = 0

    @torch.no_grad()
    def targets(self, batch: dict[str, Tensor]) -> Tensor:
        """r + γ Q(s', a'), where nothing comes after a terminal state: there `discount` is 0."""
        next_values = self.target(batch["next_obs"])
        chooser = self.q(batch["next_obs"]) if self.cfg.double else next_values
        best = chooser.argmax(1, keepdim=True)
        return batch["rewards"] + batch["discount"] * next_values.gather(1, best).squeeze(1)

    def update(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """One gradient step on one batch; every so often the target network becomes a copy."""
        values = self.q(batch["obs"]).gather(1, batch["actions"][:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, self.targets(batch))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q.parameters(), self.cfg.max_grad_norm)
        self.optimizer.step()
        self.num_updates += 1
        if self.num_updates % self.cfg.target_update_every == 0:
            self.target.load_state_dict(self.q.state_dict())
        return {"loss": loss.detach(), "q_mean": values.detach().mean()}


class Replay:
    """The last transitions, to be drawn from at random."""

    def __init__(self, size: int, obs_size: int, seed: int) -> None:
        self.data = {
            "obs": torch.zeros(size, obs_size),
            "actions": torch.zeros(size, dtype=torch.int64),
            "rewards": torch.zeros(size),
            "next_obs": torch.zeros(size, obs_size),
            "discount": torch.zeros(size),
        }
        self.generator = torch.Generator().manual_seed(seed)
        self.size, self.added = size, 0

    def add(self, **rows: Tensor) -> None:
        """Write some transitions over the oldest ones."""
        count = len(rows["rewards"])
        places = torch.arange(self.added, self.added + count) % self.size
        for name, values in rows.items():
            self.data[name][places] = values
        self.added += count

    def sample(self, count: int) -> dict[str, Tensor]:
        """Transitions drawn with replacement."""
        places = torch.randint(min(self.added, self.size), (count,), generator=self.generator)
        return {name: values[places] for name, values in self.data.items()}


class Sampler:
    """Steps the environments with the agent and fills the replay."""

    def __init__(self, envs: SyncVectorEnv, replay: Replay, cfg: Config) -> None:
        self.envs, self.replay, self.cfg = envs, replay, cfg
        self.random = np.random.default_rng(cfg.seed)
        self.obs, _ = envs.reset(seed=cfg.seed)
        self.running_returns = np.zeros(envs.num_envs)
        self.episode_returns: list[float] = []

    @torch.no_grad()
    def step(self, agent: Agent, epsilon: float) -> None:
        """One step of every environment; each throws its own coin whether to act at random."""
        obs = tensor(self.obs)
        greedy = agent.q(obs).argmax(1).numpy()
        anything = self.random.integers(self.envs.single_action_space.n, size=len(greedy))
        actions = np.where(self.random.random(len(greedy)) < epsilon, anything, greedy)
        next_obs, rewards, terminated, truncated, _ = self.envs.step(actions)
        # A time limit is not the end of the world: only a terminal state is worth nothing. `next_obs` is
        # still the true final observation, for the reset comes after.
        self.replay.add(
            obs=obs,
            actions=torch.from_numpy(actions),
            rewards=tensor(rewards),
            next_obs=tensor(next_obs),
            discount=self.cfg.gamma * (1 - tensor(terminated)),
        )
        dones = terminated | truncated
        self.running_returns += rewards
        self.episode_returns += self.running_returns[dones].tolist()
        self.running_returns[dones] = 0.0
        if dones.any():
            next_obs, _ = self.envs.reset(options={"reset_mask": dones})
        self.obs = next_obs


def tensor(array: np.ndarray) -> Tensor:
    """A float32 copy of what an environment handed out."""
    return torch.tensor(array, dtype=torch.float32)


def train(cfg: Config) -> tuple[Agent, list[float]]:
    """Train an agent; returns it with the returns of all training episodes, in order."""
    torch.manual_seed(cfg.seed)
    envs = SyncVectorEnv([lambda: gym.make(cfg.env_id)] * cfg.num_envs, autoreset_mode=AutoresetMode.DISABLED)
    obs_size = envs.single_observation_space.shape[0]
    agent = Agent(obs_size, int(envs.single_action_space.n), cfg)
    replay = Replay(cfg.buffer_size, obs_size, cfg.seed)
    sampler = Sampler(envs, replay, cfg)

    learning_starts = min(cfg.learning_starts, cfg.total_timesteps // 2)
    report_every = max(cfg.num_envs, cfg.total_timesteps // 20)
    started = time.perf_counter()
    losses: dict[str, Tensor] = {}
    credit = 0
    for step in range(0, cfg.total_timesteps, cfg.num_envs):
        progress = step / cfg.total_timesteps
        fallen = min(progress / cfg.exploration_fraction, 1.0)
        epsilon = cfg.exploration_initial + (cfg.exploration_final - cfg.exploration_initial) * fallen
        sampler.step(agent, 1.0 if step < learning_starts else epsilon)
        for group in agent.optimizer.param_groups:
            group["lr"] = cfg.learning_rate * (1 - progress)
        if step + cfg.num_envs >= learning_starts:
            credit += cfg.num_envs
        while credit >= cfg.train_every:
            credit -= cfg.train_every
            for _ in range(cfg.gradient_steps):
                losses = agent.update(replay.sample(cfg.batch_size))
        done = step + cfg.num_envs
        if done // report_every > step // report_every or done >= cfg.total_timesteps:
            report(done, sampler.episode_returns, losses, started)
    envs.close()
    return agent, sampler.episode_returns


def report(global_step: int, episode_returns: list[float], losses: dict[str, Tensor], started: float) -> None:
    """One line on how training goes; the return is the mean of the last 20 episodes."""
    mean_return = np.mean(episode_returns[-20:]) if episode_returns else float("nan")
    speed = global_step / (time.perf_counter() - started)
    parts = " ".join(f"{name}={value.item():.4f}" for name, value in losses.items())
    print(f"step={global_step} return={mean_return:.1f} steps_per_second={speed:.0f} {parts}", flush=True)


def parse_config() -> Config:
    """A config from the command line: one option a field."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    for field in fields(Config):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        else:
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
