"""Recurrent PPO in one file: everything that happens, from top to bottom.

    python examples/recurrent_ppo_reference.py --seed 1 --total-timesteps 100000

The task is CartPole without velocities: the agent sees where the cart and the pole are, and has to remember
where they were to know how they move. It needs torch, numpy and gymnasium and nothing else, and is the
yardstick of the package: given the same weights, rollout and minibatches, both compute the same losses and
the same new weights. Here the LSTM takes one step after the other, which is slow and easy to read.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; Hochreiter and Schmidhuber 1997, "Long
Short-Term Memory".
"""

from __future__ import annotations

import argparse
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
    shown: str = "0,2"
    """Which numbers of an observation the agent sees; empty: all of them."""
    seed: int = 1
    """Seed of weights, action sampling, minibatch order and environments."""
    total_timesteps: int = 100_000
    """Environment steps to train for, over all environments."""
    num_envs: int = 8
    """Environments stepped side by side."""
    num_steps: int = 128
    """Steps of each environment between two updates."""
    sequence_length: int = 32
    """Steps over which gradients flow back; a rollout is cut into sequences of so many."""
    num_minibatches: int = 4
    """Minibatches an epoch, each of several sequences."""
    update_epochs: int = 10
    """Passes over each rollout."""
    hidden_size: int = 64
    """Numbers in the memory of the actor, and in that of the critic."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it falls linearly to zero."""
    gamma: float = 0.98
    """Discount."""
    gae_lambda: float = 0.95
    """Bias (0) against variance (1) of the advantage estimate."""
    clip_coef: float = 0.2
    """How far the new policy's probability ratio may move in one update."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""


class Network(nn.Module):
    """An LSTM cell, a tanh layer and an output. Its state `[rows, 2, hidden]` is what the cell remembers."""

    def __init__(self, inputs: int, outputs: int, hidden_size: int, last_gain: float) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden_size)
        self.hidden, self.output = nn.Linear(hidden_size, 64), nn.Linear(64, outputs)
        for name, parameter in self.cell.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
        for layer, gain in ((self.hidden, 2**0.5), (self.output, last_gain)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The output for a row of observations, and the state after them."""
        state = torch.stack(self.cell(obs, (state[:, 0], state[:, 1])), 1)
        return self.output(torch.tanh(self.hidden(state[:, 0]))), state


class Agent(nn.Module):
    """Two separate networks: `actor` gives logits, `critic` a value.

    Its state `[rows, 4, hidden]` is the actor's and the critic's; zeros are the beginning of an episode.
    """

    def __init__(self, obs_size: int, num_actions: int, hidden_size: int = 64) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.actor = Network(obs_size, num_actions, hidden_size, last_gain=0.01)  # nearly uniform at first
        self.critic = Network(obs_size, 1, hidden_size, last_gain=1.0)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of all actions, values, and the state after this step."""
        logits, actor_state = self.actor(obs, state[:, :2])
        value, critic_state = self.critic(obs, state[:, 2:])
        return logits.log_softmax(-1), value.squeeze(-1), torch.cat([actor_state, critic_state], 1)

    def initial_state(self, rows: int) -> Tensor:
        """Nothing remembered."""
        return torch.zeros(rows, 4, self.hidden_size)

    def act(
        self, obs: Tensor, state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sampled actions, their log-probabilities, values, and the state after this step."""
        log_probs, values, state = self(obs, state)
        actions = torch.multinomial(log_probs.exp(), 1, generator=generator)
        return actions.squeeze(-1), log_probs.gather(-1, actions).squeeze(-1), values, state

    def evaluate(
        self, obs: Tensor, actions: Tensor, starts: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of given actions, entropies and values of sequences `[steps, sequences, …]`.

        `state` is that before the first step; before any other one where an episode starts it is forgotten.
        """
        results = []
        for t in range(len(obs)):
            if t > 0:
                state = state * (1 - starts[t])[:, None, None]
            log_probs, values, state = self(obs[t], state)
            entropy = -(log_probs.exp() * log_probs).sum(-1)
            results.append((log_probs.gather(-1, actions[t, :, None]).squeeze(-1), entropy, values))
        logprobs, entropies, values = (torch.stack(parts) for parts in zip(*results, strict=True))
        return logprobs, entropies, values


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    dones: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates of a rollout `[steps, envs]`.

    `next_values[t]` is the value of the observation that step `t` led to. It counts unless that was a
    terminal state; an ended episode, terminated or truncated, says nothing about the step stored after it.
    """
    advantages = torch.zeros_like(rewards)
    advantage = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] * (1 - terminated[t]) - values[t]
        advantage = delta + gamma * gae_lambda * (1 - dones[t]) * advantage
        advantages[t] = advantage
    return advantages


def minibatch_loss(agent: Agent, minibatch: dict[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """The loss and its parts, of a minibatch of sequences `[steps, sequences, …]` with their `state`."""
    logprobs, entropy, new_values = agent.evaluate(
        minibatch["obs"], minibatch["actions"], minibatch["starts"], minibatch["state"]
    )
    advantages = minibatch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    log_ratio = logprobs - minibatch["logprobs"]
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef)
    policy_loss = torch.maximum(-advantages * ratio, -advantages * clipped_ratio).mean()
    value_loss = 0.5 * (new_values - minibatch["returns"]).square().mean()
    entropy_loss = entropy.mean()
    return {
        "loss": policy_loss - cfg.ent_coef * entropy_loss + cfg.vf_coef * value_loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "approx_kl": (ratio - 1 - log_ratio).mean().detach(),
        "clip_fraction": ((ratio - 1).abs() > cfg.clip_coef).float().mean(),
    }


def update_minibatch(
    agent: Agent, optimizer: torch.optim.Optimizer, minibatch: dict[str, Tensor], cfg: Config
) -> dict[str, Tensor]:
    """One gradient step on one minibatch."""
    losses = minibatch_loss(agent, minibatch, cfg)
    optimizer.zero_grad()
    losses["loss"].backward()
    nn.utils.clip_grad_norm_(agent.parameters(), cfg.max_grad_norm)
    optimizer.step()
    return {name: value.detach() for name, value in losses.items()}


def make_optimizer(agent: Agent, cfg: Config) -> torch.optim.Adam:
    """Adam with the epsilon that policy gradients are customarily run with."""
    return torch.optim.Adam(agent.parameters(), lr=cfg.learning_rate, eps=1e-5)


class Sampler:
    """Steps the environments with the agent and keeps what it needs between two rollouts."""

    def __init__(self, envs: SyncVectorEnv, agent: Agent, cfg: Config) -> None:
        self.envs = envs
        self.generator = torch.Generator().manual_seed(cfg.seed)
        self.obs, _ = envs.reset(seed=cfg.seed)
        self.state = agent.initial_state(envs.num_envs)
        self.starts = torch.ones(envs.num_envs)
        self.running_returns = np.zeros(envs.num_envs)
        self.episode_returns: list[float] = []

    @torch.no_grad()
    def rollout(self, agent: Agent, cfg: Config) -> dict[str, Tensor]:
        """Sequences `[steps, sequences, …]` with their advantages; `state` is that before each first step."""
        names = ("obs", "actions", "logprobs", "values", "starts", "rewards", "terminated", "dones")
        steps: dict[str, list[Tensor]] = {name: [] for name in names}
        states: list[Tensor] = []
        final_values: dict[int, tuple[Tensor, Tensor]] = {}
        for t in range(cfg.num_steps):
            if t % cfg.sequence_length == 0:
                states.append(self.state)
            obs = tensor(self.obs)
            actions, logprobs, values, self.state = agent.act(obs, self.state, self.generator)
            next_obs, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
            dones = terminated | truncated
            ends = (tensor(rewards), tensor(terminated), tensor(dones))
            record = (obs, actions, logprobs, values, self.starts, *ends)
            for name, value in zip(steps, record, strict=True):
                steps[name].append(value)

            # A time limit is not the end of the world: what would have come next has a value. It has to be
            # asked for now, before the final observation is replaced and what led to it is forgotten.
            cut = torch.from_numpy(truncated & ~terminated)
            if cut.any():
                final_values[t] = (cut, agent(tensor(next_obs)[cut], self.state[cut])[1])
            self._count_episodes(rewards, dones)
            if dones.any():
                next_obs, _ = self.envs.reset(options={"reset_mask": dones})
            self.obs, self.starts = next_obs, tensor(dones)
            self.state = self.state * (1 - self.starts)[:, None, None]

        batch = {name: torch.stack(values) for name, values in steps.items()}
        next_values = torch.cat([batch["values"][1:], agent(tensor(self.obs), self.state)[1][None]])
        for t, (cut, values) in final_values.items():
            next_values[t, cut] = values
        batch["advantages"] = compute_gae(
            batch.pop("rewards"),
            batch["values"],
            next_values,
            batch.pop("terminated"),
            batch.pop("dones"),
            cfg.gamma,
            cfg.gae_lambda,
        )
        batch["returns"] = batch["advantages"] + batch["values"]
        return {
            **{name: cut_up(x, cfg.sequence_length) for name, x in batch.items()},
            "state": torch.cat(states),
        }

    def _count_episodes(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        self.running_returns += rewards
        self.episode_returns += self.running_returns[dones].tolist()
        self.running_returns[dones] = 0.0


def cut_up(x: Tensor, length: int) -> Tensor:
    """A rollout `[steps, envs, …]` as sequences `[length, sequences, …]`: the first of every env, then …"""
    return torch.cat(x.split(length), 1)


def pick(batch: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some sequences of a rollout."""
    return {name: x[rows] if name == "state" else x[:, rows] for name, x in batch.items()}


def tensor(array: np.ndarray) -> Tensor:
    """A float32 copy of what an environment handed out."""
    return torch.tensor(array, dtype=torch.float32)


class Shown(gym.ObservationWrapper):
    """Shows some numbers of an observation only."""

    def __init__(self, env: gym.Env, shown: list[int]) -> None:
        super().__init__(env)
        self.shown, space = shown, env.observation_space
        self.observation_space = gym.spaces.Box(space.low[shown], space.high[shown], dtype=space.dtype)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """What is left."""
        return observation[self.shown]


def make_env(cfg: Config) -> gym.Env:
    """One environment."""
    env = gym.make(cfg.env_id)
    return Shown(env, [int(i) for i in cfg.shown.split(",")]) if cfg.shown else env


def train(cfg: Config) -> tuple[Agent, list[float]]:
    """Train an agent; returns it with the returns of all training episodes, in order."""
    torch.manual_seed(cfg.seed)
    make = [lambda: make_env(cfg)] * cfg.num_envs
    envs = SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n), cfg.hidden_size)
    optimizer = make_optimizer(agent, cfg)
    sampler = Sampler(envs, agent, cfg)
    shuffling = torch.Generator().manual_seed(cfg.seed)

    batch_size = cfg.num_steps * cfg.num_envs
    num_updates = max(1, cfg.total_timesteps // batch_size)
    started = time.perf_counter()
    for update in range(num_updates):
        for group in optimizer.param_groups:
            group["lr"] = cfg.learning_rate * (1 - update / num_updates)
        batch = sampler.rollout(agent, cfg)
        for _ in range(cfg.update_epochs):
            order = torch.randperm(len(batch["state"]), generator=shuffling)
            for rows in order.tensor_split(cfg.num_minibatches):
                losses = update_minibatch(agent, optimizer, pick(batch, rows), cfg)
        if (update + 1) % max(1, num_updates // 20) == 0 or update + 1 == num_updates:
            report((update + 1) * batch_size, sampler.episode_returns, losses, started)
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
        parser.add_argument(
            "--" + field.name.replace("_", "-"), type=type(field.default), default=field.default
        )
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
