"""What uniformly random actions are worth: the lower reference point of normalised scores.

python benchmarks/random_play.py CartPole-v1 Pendulum-v1 [--episodes 200]
"""

from __future__ import annotations

import argparse
import statistics

import gymnasium as gym


def random_return(env_id: str, episodes: int) -> tuple[float, float]:
    """Mean return and its standard error; episode n starts from seed n, actions are drawn from seed n too."""
    env = gym.make(env_id, **({"continuous": True} if env_id.startswith("LunarLanderContinuous") else {}))
    returns = []
    for episode in range(episodes):
        env.reset(seed=episode)
        env.action_space.seed(episode)
        total, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    return statistics.fmean(returns), statistics.stdev(returns) / episodes**0.5


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--episodes", type=int, default=200)
    args = parser.parse_args()
    for env_id in args.envs:
        mean, error = random_return(env_id, args.episodes)
        print(f"{env_id}: {mean:.4g} ± {error:.2g}", flush=True)


if __name__ == "__main__":
    main()
