"""A2C for discrete actions in one file: everything that happens, from top to bottom.

    python examples/a2c_reference.py --seed 1 --total-timesteps 500000

It needs torch, numpy and gymnasium and nothing else, and is the yardstick of the package: given the same
weights and rollouts, both compute the same losses and the same new weights.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", in its synchronous form.
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
    seed: int = 1
    """Seed of weights, action sampling, minibatch order and environments."""
    total_timesteps: int = 500_000
    """Environment steps to train for, over all environments."""
    num_envs: int = 8
    """Environments stepped side by side."""
    num_steps: int = 5
    """Steps of each environment between two updates (fewer if the whole run is shorter)."""
    learning_rate: float = 7e-4
    """RMSprop's step size."""
    rmsprop_alpha: float = 0.99
    """How much of RMSprop's mean square is kept at each step."""
    rmsprop_eps: float = 1e-5
    """RMSprop's epsilon, under the square root."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 1.0
    """Bias (0) against variance (1) of the advantage estimate; 1 is the n-step return."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 1.0
    """Weight of the value loss, which is half a squared error."""
    normalize_advantages: bool = False
    """Give the advantages of each rollout mean 0 and deviation 1."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""


class Agent(nn.Module):
    """Two separate tanh networks: `actor` gives logits, `critic` a value."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = mlp(obs_size, num_actions, last_gain=0.01)  # nearly uniform at first
        self.critic = mlp(obs_size, 1, last_gain=1.0)

    def value(self, obs: Tensor) -> Tensor:
        """V(obs), one number a row."""
        return self.critic(obs).squeeze(-1)

    def act(self, obs: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled actions, their log-probabilities, and values."""
        log_probs = self.actor(obs).log_softmax(-1)
        actions = torch.multinomial(log_probs.exp(), 1, generator=generator)
        return actions.squeeze(-1), log_probs.gather(-1, actions).squeeze(-1), self.value(obs)

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of given actions, entropy of the policy, and values."""
        log_probs = self.actor(obs).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, actions[:, None]).squeeze(-1), entropy, self.value(obs)


def mlp(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Two hidden layers of 64, orthogonal weights and no bias to begin with."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in ((layers[0], 2**0.5), (layers[2], 2**0.5), (layers[4], last_gain)):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


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


def rollout_loss(agent: Agent, rollout: dict[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """The loss and its parts. A rollout has obs, actions, advantages and returns."""
    logprobs, entropy, values = agent.evaluate(rollout["obs"], rollout["actions"])
    advantages = rollout["advantages"]
    if cfg.normalize_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -(advantages * logprobs).mean()
    value_loss = 0.5 * (values - rollout["returns"]).square().mean()
    entropy_loss = entropy.mean()
    return {
        "loss": policy_loss - cfg.ent_coef * entropy_loss + cfg.vf_coef * value_loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
    }


def update(agent: Agent, optimizer: RMSprop, rollout: dict[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """The one gradient step that a rollout pays for."""
    losses = rollout_loss(agent, rollout, cfg)
    agent.zero_grad()
    losses["loss"].backward()
    nn.utils.clip_grad_norm_(agent.parameters(), cfg.max_grad_norm)
    optimizer.step()
    return {name: value.detach() for name, value in losses.items()}


class RMSprop:
    """RMSprop as TensorFlow writes it: epsilon under the root, the mean square begins at one."""

    def __init__(self, parameters: list[nn.Parameter], cfg: Config) -> None:
        self.parameters, self.cfg = parameters, cfg
        self.mean_squares = [torch.ones_like(p) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter against its gradient, scaled by what its gradients usually are."""
        alpha = self.cfg.rmsprop_alpha
        for parameter, mean_square in zip(self.parameters, self.mean_squares, strict=True):
            gradient = parameter.grad
            mean_square.mul_(alpha).add_((1 - alpha) * gradient.square())
            parameter -= self.cfg.learning_rate * gradient / (mean_square + self.cfg.rmsprop_eps).sqrt()


def make_optimizer(agent: Agent, cfg: Config) -> RMSprop:
    """The optimiser of all of the agent."""
    return RMSprop(list(agent.parameters()), cfg)


class Sampler:
    """Steps the environments with the agent and keeps what it needs between two rollouts."""

    def __init__(self, envs: SyncVectorEnv, seed: int) -> None:
        self.envs = envs
        self.generator = torch.Generator().manual_seed(seed)
        self.obs, _ = envs.reset(seed=seed)
        self.running_returns = np.zeros(envs.num_envs)
        self.episode_returns: list[float] = []

    @torch.no_grad()
    def rollout(self, agent: Agent, num_steps: int, cfg: Config) -> dict[str, Tensor]:
        """`num_steps` transitions of every environment with their advantages, as flat tensors."""
        steps: dict[str, list[Tensor]] = {
            name: [] for name in ("obs", "actions", "logprobs", "values", "rewards", "terminated", "dones")
        }
        final_values: dict[int, tuple[np.ndarray, Tensor]] = {}
        for t in range(num_steps):
            obs = tensor(self.obs)
            actions, logprobs, values = agent.act(obs, self.generator)
            next_obs, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
            dones = terminated | truncated
            record = (obs, actions, logprobs, values, tensor(rewards), tensor(terminated), tensor(dones))
            for name, value in zip(steps, record, strict=True):
                steps[name].append(value)

            # A time limit is not the end of the world: what would have come next has a value. It has to be
            # asked for now, before the reset replaces the final observation.
            cut = truncated & ~terminated
            if cut.any():
                final_values[t] = (cut, agent.value(tensor(next_obs[cut])))
            self._count_episodes(rewards, dones)
            if dones.any():
                next_obs, _ = self.envs.reset(options={"reset_mask": dones})
            self.obs = next_obs

        batch = {name: torch.stack(values) for name, values in steps.items()}
        next_values = torch.cat([batch["values"][1:], agent.value(tensor(self.obs))[None]])
        for t, (cut, values) in final_values.items():
            next_values[t, torch.from_numpy(cut)] = values
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
        return {name: values.flatten(0, 1) for name, values in batch.items()}

    def _count_episodes(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        self.running_returns += rewards
        self.episode_returns += self.running_returns[dones].tolist()
        self.running_returns[dones] = 0.0


def tensor(array: np.ndarray) -> Tensor:
    """A float32 copy of what an environment handed out."""
    return torch.tensor(array, dtype=torch.float32)


def train(cfg: Config) -> tuple[Agent, list[float]]:
    """Train an agent; returns it with the returns of all training episodes, in order."""
    torch.manual_seed(cfg.seed)
    envs = SyncVectorEnv([lambda: gym.make(cfg.env_id)] * cfg.num_envs, autoreset_mode=AutoresetMode.DISABLED)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = make_optimizer(agent, cfg)
    sampler = Sampler(envs, cfg.seed)

    num_steps = max(1, min(cfg.num_steps, cfg.total_timesteps // cfg.num_envs))
    batch_size = num_steps * cfg.num_envs
    num_updates = max(1, cfg.total_timesteps // batch_size)
    started = time.perf_counter()
    for number in range(1, num_updates + 1):
        rollout = sampler.rollout(agent, num_steps, cfg)
        losses = update(agent, optimizer, rollout, cfg)
        if number % max(1, num_updates // 20) == 0 or number == num_updates:
            report(number * batch_size, sampler.episode_returns, losses, started)
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
