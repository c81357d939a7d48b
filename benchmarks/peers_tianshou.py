"""Tianshou as a contender: its trainer with the settings of a job, and otherwise what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pace import FOREVER, Job, Meter


def tianshou(job: Job, meter: Meter) -> None:
    """Train with Tianshou's trainer, without tests; one update a step is one collection of one step."""
    import gymnasium as gym
    import torch
    from tianshou import trainer
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    algorithm = ALGORITHMS[job.algo](job, gym.make(job.env_id))
    envs = DummyVectorEnv([lambda: gym.make(job.env_id)] * job.num_envs)
    a_collection = job.num_envs * (job.num_steps if job.is_on_policy else 1)
    buffer = VectorReplayBuffer(a_collection if job.is_on_policy else job.buffer_size, job.num_envs)
    collector = Collector(algorithm, envs, buffer, exploration_noise=not job.is_on_policy)
    collector.reset()
    if not job.is_on_policy:
        collector.collect(n_step=job.learning_starts, random=True)
    done = job.learning_starts if not job.is_on_policy else 0
    loop: dict[str, Any] = {
        "training_collector": collector,
        "max_epochs": FOREVER,
        "epoch_num_steps": 10_000 * a_collection,
        "collection_step_num_env_steps": a_collection,
        "training_fn": lambda _, step: meter.boundary(done + step),
        "verbose": False,
        "show_progress": False,
    }
    preceded(algorithm, "update", meter.collected)
    if job.is_on_policy:
        sizes = {"batch_size": a_collection // job.minibatches, "update_step_num_repetitions": job.epochs}
        algorithm.run_training(trainer.OnPolicyTrainerParams(**loop, **sizes))
    else:
        algorithm.run_training(trainer.OffPolicyTrainerParams(**loop, batch_size=job.batch_size))


def preceded(owner: Any, name: str, first: Callable[[], None]) -> None:
    """Have `first` called before every call of a method."""
    method = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return method(*args, **kwargs)

    setattr(owner, name, both)


def ppo(job: Job, env: Any) -> Any:
    """An actor and a critic of their own, with one optimiser."""
    import torch
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    def body() -> Any:
        shape = env.observation_space.shape
        return Net(state_shape=shape, hidden_sizes=job.hidden, activation=torch.nn.Tanh)

    actor = DiscreteActor(preprocess_net=body(), action_shape=env.action_space.n, softmax_output=False)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=env.action_space,
        action_scaling=False,
    )
    return PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=body()),
        optim=AdamOptimizerFactory(lr=3e-4),
        value_clip=True,
        ent_coef=0.0,
        max_grad_norm=0.5,
        max_batchsize=100_000,
    )


def dqn(job: Job, env: Any) -> Any:
    """Explores as much from its first step on as the others here."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    network = Net(
        state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=job.hidden
    )
    policy = DiscreteQLearningPolicy(model=network, action_space=env.action_space, eps_training=0.05)
    return DQN(policy=policy, optim=AdamOptimizerFactory(), target_update_freq=1_000, is_double=False)


def sac(job: Job, env: Any) -> Any:
    """Two critics and a temperature that is learned."""
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic

    actor = ContinuousActorProbabilistic(
        preprocess_net=body(job, env),
        action_shape=env.action_space.shape,
        unbounded=True,
        conditioned_sigma=True,
    )
    return SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space),
        alpha=AutoAlpha(-float(env.action_space.shape[0]), 0.0, AdamOptimizerFactory(lr=3e-4)),
        **critics(job, env),
    )


def td3(job: Job, env: Any) -> Any:
    """An actor that learns every second time."""
    from tianshou.algorithm import TD3
    from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
    from tianshou.utils.net.continuous import ContinuousActorDeterministic

    actor = ContinuousActorDeterministic(preprocess_net=body(job, env), action_shape=env.action_space.shape)
    policy = ContinuousDeterministicPolicy(
        actor=actor, action_space=env.action_space, exploration_noise="default"
    )
    return TD3(policy=policy, **critics(job, env))


def body(job: Job, env: Any, **more: Any) -> Any:
    """Dense layers over observations."""
    from tianshou.utils.net.common import Net

    return Net(state_shape=env.observation_space.shape, hidden_sizes=job.hidden, **more)


def critics(job: Job, env: Any) -> dict[str, Any]:
    """Two critics of observations and actions, and who optimises what."""
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.continuous import ContinuousCritic

    actions = {"action_shape": env.action_space.shape, "concat": True}
    critics = [ContinuousCritic(preprocess_net=body(job, env, **actions)) for _ in range(2)]
    optim = AdamOptimizerFactory(lr=3e-4)
    return {
        "critic": critics[0],
        "critic2": critics[1],
        **dict.fromkeys(("policy_optim", "critic_optim", "critic2_optim"), optim),
    }


ALGORITHMS: dict[str, Callable[[Job, Any], Any]] = {"ppo": ppo, "dqn": dqn, "sac": sac, "td3": td3}
