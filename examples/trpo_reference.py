"""TRPO in one file, for discrete and for continuous actions: everything that happens, from top to bottom.

    python examples/trpo_reference.py --seed 1 --total-timesteps 100000
    python examples/trpo_reference.py --env-id Pendulum-v1 --gamma 0.9

It needs torch, numpy and gymnasium and nothing else, and is the yardstick of the package: given the same
weights, rollout and minibatches, both take the same natural step and compute the same new weights.

Schulman et al. 2015, "Trust Region Policy Optimization".
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
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
    """Gymnasium id of an environment with vector observations and Discrete or Box actions."""
    seed: int = 1
    """Seed of weights, action sampling, minibatch order and environments."""
    total_timesteps: int = 100_000
    """Environment steps to train for, over all environments."""
    num_envs: int = 2
    """Environments stepped side by side."""
    num_steps: int = 512
    """Steps of each environment between two updates (fewer if the whole run is shorter)."""
    num_minibatches: int = 2
    """Minibatches an epoch of the critic."""
    update_epochs: int = 20
    """Passes of the critic over each rollout."""
    learning_rate: float = 1e-3
    """Adam's step size, for the critic."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.98
    """Bias (0) against variance (1) of the advantage estimate."""
    target_kl: float = 0.01
    """How far a step may move the policy, as the mean KL divergence from the old one."""
    cg_steps: int = 15
    """Conjugate-gradient steps towards the natural gradient."""
    cg_damping: float = 1e-3
    """Multiple of the identity added to the Fisher matrix."""
    line_search_steps: int = 10
    """Step lengths tried before the step is given up."""
    line_search_shrink: float = 0.8
    """Each step length tried is the one before times this."""


class Agent(nn.Module):
    """Two separate tanh networks: `actor` gives logits or the mean of a Gaussian, `critic` a value."""

    def __init__(self, obs_size: int, action_space: gym.Space) -> None:
        super().__init__()
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        outputs = int(action_space.n) if self.discrete else action_space.shape[0]
        self.actor = mlp(obs_size, outputs, last_gain=0.01)  # nearly uniform, or centred, at first
        self.critic = mlp(obs_size, 1, last_gain=1.0)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.zeros(outputs))

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the policy is made of."""
        return [*self.actor.parameters(), *([] if self.discrete else [self.log_std])]

    def value(self, obs: Tensor) -> Tensor:
        """V(obs), one number a row."""
        return self.critic(obs).squeeze(-1)

    def policy(self, obs: Tensor) -> tuple[Tensor, ...]:
        """What describes the policy in each row: log-probabilities, or means and log-deviations."""
        outputs = self.actor(obs)
        return (outputs.log_softmax(-1),) if self.discrete else (outputs, self.log_std.expand_as(outputs))

    def act(self, obs: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled actions, their log-probabilities, and values."""
        policy = self.policy(obs)
        if self.discrete:
            actions = torch.multinomial(policy[0].exp(), 1, generator=generator).squeeze(-1)
        else:
            mean, log_std = policy
            actions = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
        return actions, self.log_prob(policy, actions), self.value(obs)

    def log_prob(self, policy: tuple[Tensor, ...], actions: Tensor) -> Tensor:
        """Log-probabilities (densities) of actions."""
        if self.discrete:
            return policy[0].gather(-1, actions[:, None]).squeeze(-1)
        mean, log_std = policy
        z = (actions - mean) / log_std.exp()
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def kl(self, old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> Tensor:
        """KL(old || new) of each row."""
        if self.discrete:
            return (old[0].exp() * (old[0] - new[0])).sum(-1)
        (old_mean, old_log_std), (mean, log_std) = old, new
        spread = (2 * old_log_std).exp() + (old_mean - mean).square()
        return (log_std - old_log_std + 0.5 * spread / (2 * log_std).exp() - 0.5).sum(-1)


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


def flat(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """All numbers of several tensors in one row."""
    return torch.cat([x.reshape(-1) for x in tensors])


def surrogate(agent: Agent, rollout: dict[str, Tensor], old: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The objective, which the step is to increase, and the mean KL divergence, which it may not exceed."""
    advantages = rollout["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    new = agent.policy(rollout["obs"])
    ratio = (agent.log_prob(new, rollout["actions"]) - rollout["logprobs"]).exp()
    return (advantages * ratio).mean(), agent.kl(old, new).mean()


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor, steps: int) -> Tensor:
    """x with F x = target, for a matrix F of which only products are known."""
    x = torch.zeros_like(target)
    residual, search = target.clone(), target.clone()
    error = residual @ residual
    for _ in range(steps):
        if error <= 1e-10:
            break
        curved = product(search)
        length = error / (search @ curved)
        x = x + length * search
        residual = residual - length * curved
        new_error = residual @ residual
        search = residual + (new_error / error) * search
        error = new_error
    return x


def natural_step(agent: Agent, objective: Tensor, kl: Tensor, cfg: Config) -> Tensor:
    """The longest step along the natural gradient that the quadratic model of the KL allows."""
    parameters = agent.actor_parameters()
    gradient = flat(torch.autograd.grad(objective, parameters, retain_graph=True))
    kl_gradient = flat(torch.autograd.grad(kl, parameters, create_graph=True))

    def fisher(vector: Tensor) -> Tensor:
        rows = torch.autograd.grad(kl_gradient @ vector, parameters, retain_graph=True)
        return flat(rows) + cfg.cg_damping * vector

    direction = conjugate_gradient(fisher, gradient, cfg.cg_steps)
    return direction * (2 * cfg.target_kl / (direction @ fisher(direction))).sqrt()


def update_policy(agent: Agent, rollout: dict[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """One natural step, made shorter until it improves the objective inside the trust region."""
    with torch.no_grad():
        old = tuple(part.clone() for part in agent.policy(rollout["obs"]))  # parameters change in place
    objective, kl = surrogate(agent, rollout, old)
    step = natural_step(agent, objective, kl, cfg)
    start = flat(agent.actor_parameters()).detach()
    accepted = False
    for tries in range(cfg.line_search_steps):
        set_parameters(agent.actor_parameters(), start + cfg.line_search_shrink**tries * step)
        with torch.no_grad():
            new_objective, new_kl = surrogate(agent, rollout, old)
        accepted = bool(new_kl <= cfg.target_kl and new_objective > objective)
        if accepted:
            break
    if not accepted:
        set_parameters(agent.actor_parameters(), start)
        new_objective, new_kl = objective.detach(), kl.detach()
    return {"policy_loss": -new_objective, "kl": new_kl, "line_search_success": torch.tensor(float(accepted))}


@torch.no_grad()
def set_parameters(parameters: list[nn.Parameter], row: Tensor) -> None:
    """Write one row of numbers back into the tensors it was made of."""
    parts = row.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view_as(parameter))


def update_critic(
    agent: Agent, optimizer: torch.optim.Optimizer, minibatch: dict[str, Tensor]
) -> dict[str, Tensor]:
    """One gradient step of the critic on one minibatch."""
    loss = 0.5 * (agent.value(minibatch["obs"]) - minibatch["returns"]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"value_loss": loss.detach()}


def make_optimizer(agent: Agent, cfg: Config) -> torch.optim.Adam:
    """Adam for the critic; the policy needs none."""
    return torch.optim.Adam(agent.critic.parameters(), lr=cfg.learning_rate, eps=1e-5)


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
            next_obs, rewards, terminated, truncated, _ = self.envs.step(self.env_actions(actions))
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

    def env_actions(self, actions: Tensor) -> np.ndarray:
        """What the environment is told: a Gaussian has no bounds, the action space may."""
        space = self.envs.single_action_space
        if isinstance(space, gym.spaces.Discrete):
            return actions.numpy()
        return np.clip(actions.numpy(), space.low, space.high)

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
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space)
    optimizer = make_optimizer(agent, cfg)
    sampler = Sampler(envs, cfg.seed)
    shuffling = torch.Generator().manual_seed(cfg.seed)

    num_steps = max(1, min(cfg.num_steps, cfg.total_timesteps // cfg.num_envs))
    batch_size = num_steps * cfg.num_envs
    num_updates = max(1, cfg.total_timesteps // batch_size)
    started = time.perf_counter()
    for update in range(num_updates):
        batch = sampler.rollout(agent, num_steps, cfg)
        losses = update_policy(agent, batch, cfg)
        for _ in range(cfg.update_epochs):
            order = torch.randperm(batch_size, generator=shuffling)
            for rows in order.tensor_split(cfg.num_minibatches):
                minibatch = {name: values[rows] for name, values in batch.items()}
                losses |= update_critic(agent, optimizer, minibatch)
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
