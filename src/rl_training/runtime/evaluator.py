"""Measures a policy over an exact number of full episodes, without touching training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.envs.vector import VectorEnv
from rl_training.policies.obs import to_tensor
from rl_training.runtime.collector import Policy
from rl_training.runtime.stepping import ended_mask
from rl_training.types import Array, Decision, Episode, Evaluation, StepResult, TensorObs


class Moment(NamedTuple):
    """One step of all envs: what the policy saw, what the envs were told, and what came of it."""

    obs: TensorObs
    actions: Array
    result: StepResult


@contextmanager
def evaluation_mode(policy: Any) -> Iterator[None]:
    """Put every module of a policy into eval mode (dropout off, …), and back into the mode it was in."""
    training = [module for module in policy.modules() if module.training]
    policy.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def evaluate(
    policy: Policy,
    envs: VectorEnv,
    num_episodes: int,
    *,
    device: torch.device,
    deterministic: bool = True,
    seed: int = 0,
    on_step: Callable[[Moment], None] | None = None,
    longest: int | None = None,
    env_id: str = "",
) -> Evaluation:
    """Run `num_episodes` full episodes of `envs`; `seed` decides which episodes they are.

    Each env owes a share fixed beforehand, so that short episodes are not counted more often than long ones:
    taking the first episodes to finish would favour them. What an env plays beyond its share is ignored.
    An episode that does not end is cut after `longest` steps, with a warning.
    """
    limit = envs.time_limit  # from the second evaluation on it is the cap: the warning comes once
    if longest is not None:
        envs.cap_episodes(longest)
    with torch.inference_mode(), evaluation_mode(policy):
        evaluation = _evaluate(policy, envs, num_episodes, device, deterministic, seed, on_step)
    if longest is not None and longest in evaluation.lengths and (limit is None or longest < limit):
        warnings.warn(
            f"env {env_id}: an episode of the evaluation did not end in {longest:,} steps and was cut; "
            "give the env a time limit (env.max_episode_steps), or set evaluation.max_episode_steps",
            stacklevel=2,
        )
    return evaluation


def _evaluate(
    policy: Policy,
    envs: VectorEnv,
    num_episodes: int,
    device: torch.device,
    deterministic: bool,
    seed: int,
    on_step: Callable[[Moment], None] | None,
) -> Evaluation:
    share = shares(num_episodes, envs.num_envs)
    finished: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
    owed = num_episodes
    for moment in play(policy, envs, device=device, deterministic=deterministic, seed=seed):
        if on_step is not None:
            on_step(moment)
        for episode in moment.result.episodes:
            if len(finished[episode.env_index]) < share[episode.env_index]:
                finished[episode.env_index].append(episode)
                owed -= 1
        if not owed:
            break
    return _collect(finished)


def play(
    policy: Policy, envs: VectorEnv, *, device: torch.device, deterministic: bool = True, seed: int = 0
) -> Iterator[Moment]:
    """Step `envs` with a policy for as long as somebody asks; `seed` decides which episodes are played."""
    generator = torch.Generator(device).manual_seed(seed)
    obs, state = envs.reset(seed=seed), policy.initial_state(envs.num_envs)
    decide = _decider(policy) if deterministic and state is None else None
    while True:
        seen = to_tensor(obs, device)
        if decide is not None:
            chosen = decide(seen).actions
        else:
            output = policy.act(seen, state, deterministic, generator)
            chosen, state = output.actions, output.state
        actions = policy.env_actions(chosen).cpu().numpy()
        result = envs.step(actions)
        yield Moment(seen, actions, result)
        obs = result.obs
        if len(result.ended) and state is not None:
            state = policy.reset_state(state, ended_mask(result.ended, envs.num_envs, device))


def _decider(policy: Any) -> Callable[[TensorObs], Decision] | None:
    """How to ask for likeliest actions, without values that nobody wants. None where `act` may differ."""
    owners = [
        next((cls for cls in type(policy).__mro__ if name in vars(cls)), None) for name in ("decide", "act")
    ]
    if owners[0] is None or owners[1] is None or not issubclass(owners[0], owners[1]):
        return None
    decide: Callable[[TensorObs], Decision] = policy.decide
    return decide


def shares(num_episodes: int, num_envs: int) -> Array:
    """How many episodes each env owes: as even as possible."""
    return np.array([num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)])


def _collect(finished: Sequence[Sequence[Episode]]) -> Evaluation:
    episodes = [episode for column in finished for episode in column]
    return Evaluation(
        returns=tuple(e.total_reward for e in episodes),
        lengths=tuple(e.length for e in episodes),
        seeds=tuple(-1 if e.seed is None else e.seed for e in episodes),
        successes=tuple(e.success for e in episodes if e.success is not None),
    )
