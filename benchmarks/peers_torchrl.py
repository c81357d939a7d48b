"""TorchRL as a contender: its collectors, buffers, losses and targets, in a loop as its users write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pace import FOREVER, Job, Meter


def torchrl(job: Job, meter: Meter) -> None:
    """Train with the settings of a job; nothing is logged."""
    import torch

    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    {"ppo": ppo, "dqn": dqn, "sac": sac, "td3": td3}[job.algo](job, meter)


def environment(job: Job) -> Any:
    """Its envs side by side, in Gymnasium's vector of processes: quicker here than its own serial ones."""
    from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
    from torchrl.envs.transforms import Compose

    many = {"num_envs": job.num_envs} if job.num_envs > 1 else {}
    envs = GymEnv(job.env_id, device="cpu", **many)
    return TransformedEnv(envs, Compose(StepCounter(), RewardSum()))


def network(job: Job, inputs: int | None, outputs: int, activation: Any) -> Any:
    """Dense layers."""
    from torchrl.modules import MLP

    return MLP(inputs, outputs, num_cells=list(job.hidden), activation_class=activation)


def ppo(job: Job, meter: Meter) -> None:
    """Advantages once an iteration, then epochs over shuffled minibatches."""
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    env = environment(job)
    size = env.observation_spec["observation"].shape[-1]
    logits = TensorDictModule(network(job, size, 2, torch.nn.Tanh), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(job, size, 1, torch.nn.Tanh), in_keys=["observation"])
    rollout = job.num_envs * job.num_steps
    collector = Collector(env, actor, frames_per_batch=rollout, total_frames=FOREVER)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rollout),
        sampler=SamplerWithoutReplacement(),
        batch_size=rollout // job.minibatches,
    )
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_coeff=0.0,
        critic_coeff=0.5,
        normalize_advantage=True,
        clip_value=True,
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    steps = 0
    meter.boundary(steps)
    for data in collector:
        meter.collected()
        with torch.no_grad():
            data = advantages(data)
        flat = data.reshape(-1)
        for _ in range(job.epochs):
            buffer.extend(flat)
            for minibatch in buffer:
                step(optimizer, loss(minibatch), 0.5, loss.parameters())
        collector.update_policy_weights_()
        steps += rollout
        meter.boundary(steps)


def step(optimizer: Any, losses: Any, clip: float | None = None, parameters: Any = ()) -> None:
    """Down the sum of all losses."""
    import torch

    total = sum(value for key, value in losses.items() if key.startswith("loss"))
    total.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    optimizer.zero_grad()


def batches(job: Job, meter: Meter, env: Any, policy: Any) -> Iterator[Any]:
    """One step, one batch from the replay buffer."""
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    collector = Collector(
        env,
        policy,
        frames_per_batch=job.num_envs,
        total_frames=FOREVER,
        init_random_frames=job.learning_starts,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(job.buffer_size), batch_size=job.batch_size)
    steps = 0
    for data in collector:
        buffer.extend(data.reshape(-1))
        steps += job.num_envs
        meter.collected()
        if steps > job.learning_starts:
            yield buffer.sample()
            collector.update_policy_weights_()
        meter.boundary(steps)


def dqn(job: Job, meter: Meter) -> None:
    """With a target network that is copied now and then."""
    import torch
    from tensordict.nn import TensorDictSequential
    from torchrl.modules import EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate

    env = environment(job)
    size = env.observation_spec["observation"].shape[-1]
    values = QValueActor(network(job, size, 2, torch.nn.ReLU), in_keys=["observation"], spec=env.action_spec)
    exploring = EGreedyModule(spec=env.action_spec, eps_init=0.05, eps_end=0.05, annealing_num_steps=1)
    loss = DQNLoss(values, loss_function="smooth_l1", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    targets = HardUpdate(loss, value_network_update_interval=1_000)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    for batch in batches(job, meter, env, TensorDictSequential(values, exploring)):
        step(optimizer, loss(batch))
        targets.step()


def sac(job: Job, meter: Meter) -> None:
    """Actor, critics and temperature in one step."""
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.modules import ProbabilisticActor, TanhNormal
    from torchrl.objectives import SACLoss, SoftUpdate

    env = environment(job)
    size, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    body = torch.nn.Sequential(network(job, size, 2 * actions, torch.nn.ReLU), NormalParamExtractor())
    bounds = {"low": env.action_spec.space.low, "high": env.action_spec.space.high}
    actor = ProbabilisticActor(
        TensorDictModule(body, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs=bounds,
    )
    loss = SACLoss(actor, critic(job, size + actions), num_qvalue_nets=2, target_entropy=-float(actions))
    loss.make_value_estimator(gamma=0.99)
    targets = SoftUpdate(loss, tau=0.005)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    for batch in batches(job, meter, env, actor):
        step(optimizer, loss(batch))
        targets.step()


def td3(job: Job, meter: Meter) -> None:
    """The actor and the targets every second time."""
    import torch
    from tensordict.nn import TensorDictSequential
    from torchrl.modules import AdditiveGaussianModule, TanhModule
    from torchrl.modules.tensordict_module import Actor
    from torchrl.objectives import SoftUpdate, TD3Loss

    env = environment(job)
    size, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    actor = TensorDictSequential(
        Actor(network(job, size, actions, torch.nn.ReLU), in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec),
    )
    exploring = AdditiveGaussianModule(
        spec=env.action_spec, sigma_init=0.1, sigma_end=0.1, annealing_num_steps=1
    )
    loss = TD3Loss(actor, critic(job, size + actions), num_qvalue_nets=2, action_spec=env.action_spec)
    loss.make_value_estimator(gamma=0.99)
    targets = SoftUpdate(loss, tau=0.005)
    critics = torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), lr=3e-4)
    actors = torch.optim.Adam(loss.actor_network_params.flatten_keys().values(), lr=3e-4)
    for number, batch in enumerate(batches(job, meter, env, TensorDictSequential(actor, exploring)), 1):
        step(critics, {"loss": loss.value_loss(batch)[0]})
        if number % 2 == 0:
            step(actors, {"loss": loss.actor_loss(batch)[0]})
            targets.step()


def critic(job: Job, inputs: int) -> Any:
    """Of observations and actions; the loss makes two of it."""
    import torch
    from torchrl.modules import ValueOperator

    return ValueOperator(network(job, inputs, 1, torch.nn.ReLU), in_keys=["observation", "action"])
