"""Study files: typed, checked against the configuration before the first trial, mistakes with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from rl_training.zoo.tuning.space import Dimension
from rl_training.zoo.tuning.study import load_study

BASE = "overrides: {algo: a2c, env_id: CartPole-v1, evaluation.every_steps: 1000}\nsteps: 4000\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "my-study.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    path = write(folder, text)
    with pytest.raises(ConfigError) as error:
        load_study(path)
    return [problem.replace(f"{path}:", "") for problem in error.value.problems]


def test_ranges_and_choices_get_their_type_from_the_field(tmp_path: Path) -> None:
    space = """space:
  hyperparams.learning_rate: {low: 1e-5, high: 1, log: true}
  hyperparams.num_steps: {low: 4, high: 1e2, log: true}
  num_envs: {low: 2, high: 9, step: 3}
  hyperparams.gamma: {low: 0.9, high: 0.99, step: 0.04}
  network.hidden: [[64, 64], [32], null]
  hyperparams.normalize_advantages: {choices: [true, false]}
  env_kwargs.size: {low: 1, high: 4}
  env_kwargs.wind: {low: 1, high: 4, type: float}
"""
    design = load_study(write(tmp_path, BASE + space))
    assert list(design.dimensions) == [
        Dimension("hyperparams.learning_rate", "float", 1e-5, 1.0, log=True),
        Dimension("hyperparams.num_steps", "int", 4.0, 100.0, log=True),
        Dimension("num_envs", "int", 2.0, 8.0, step=3.0),  # 9 is not so many steps above 2
        Dimension("hyperparams.gamma", "float", 0.9, 0.98, step=0.04),
        Dimension("network.hidden", "choice", choices=([64, 64], [32], None)),
        Dimension("hyperparams.normalize_advantages", "choice", choices=(True, False)),
        Dimension("env_kwargs.size", "int", 1.0, 4.0),
        Dimension("env_kwargs.wind", "float", 1.0, 4.0),
    ]
    assert (design.study.name, design.trials, design.evaluations) == ("my-study", 20, 4)
    kept = {d.key: cells[-1] if (cells := d.cells()) else 4 for d in design.dimensions}
    values = design.values(kept)
    assert kept["network.hidden"] is None
    assert values["num_envs"] == 8
    resolved = design.resolve({**values, "network.hidden": [32]}).config
    assert (resolved.network.hidden, resolved.num_envs, resolved.total_timesteps) == ((32,), 8, 4000)
    assert (resolved.env_kwargs, resolved.threads) == ({"size": 4, "wind": 4}, 1)
    assert design.base.config.num_envs == 8


def test_every_mistake_in_a_space_is_named_with_its_line(tmp_path: Path) -> None:
    space = """space:
  hyperparams.learning_rat: {low: 1e-5, high: 1e-2}
  learning_rate: {low: 1e-5, high: 1e-2}
  hyperparams.num_steps: {low: 4.5, high: 64}
  hyperparams.gamma:
    low: 0.9
    high: 1.5
  network.hidden: [[64, 64], 3.5]
  hyperparams.normalize_advantages: [maybe]
  num_envs: {low: 8, hig: 8}
  hyperparams.num_minibatches: [1, 2]
  hyperparams.ent_coef: {low: 0, high: 1, log: true}
  hyperparams.vf_coef: {low: 1, high: 0}
  hyperparams.max_grad_norm: 3
  hyperparams.gae_lambda: [0.9, 0.9]
  hyperparams: [1]
  logging: {csv: [true, false]}
  env: {atari: {sticky_actions: {low: 0, high: 1}}}
  hyperparams.clip_range: {low: 0, high: 1, step: 2}
  hyperparams.weight_decay: {low: 0, high: 1, step: 1e-300}
"""
    assert problems(tmp_path, BASE + space) == [
        "4: space.hyperparams.learning_rat: unknown key; did you mean 'learning_rate'?",
        "5: space.learning_rate: unknown key; did you mean 'hyperparams.learning_rate' or "
        "'intrinsic.learning_rate'?",
        "6: space.hyperparams.num_steps: must be a valid integer, got a number with a fractional part",
        "7: space.hyperparams.gamma: must be less than or equal to 1, got 1.5",
        "10: space.network.hidden: must be a valid tuple, got 3.5",
        "11: space.hyperparams.normalize_advantages: expected true or false, got 'maybe'",
        "12: space.num_envs.high: required, but not given",
        "12: space.num_envs.hig: unknown key; did you mean 'high'?",
        "13: space.hyperparams.num_minibatches: 2 contradicts the algorithm 'a2c', which is defined by "
        "num_minibatches: 1",
        "14: space.hyperparams.ent_coef.low: must be above 0 where log is true, got 0",
        "15: space.hyperparams.vf_coef.high: must be more than low, 1, got 0",
        "16: space.hyperparams.max_grad_norm: expected {low, high}, {choices} or a list of choices, got 3",
        "17: space.hyperparams.gae_lambda.choices: the same value twice",
        "18: space.hyperparams: a section; name one of its fields",
        "19: space.logging: a section; name its fields by dotted keys: logging.csv",
        "20: space.env: a section; name its fields by dotted keys: env.atari.sticky_actions",
        "21: space.hyperparams.clip_range.step: longer than the whole range, got 2",
        "22: space.hyperparams.weight_decay.step: too short to matter, got 1e-300; leave it out",
    ]


GAMMA = "space: {hyperparams.gamma: [0.9, 0.99]}\n"


MISTAKES = {
    f"{BASE}{GAMMA}sampler: tpee\n": (
        "4: sampler.kind: expected 'tpe', 'random' or 'grid', got 'tpee'; did you mean 'tpe'?"
    ),
    f"{BASE}{GAMMA}trails: 3\n": "4: trails: unknown key; did you mean 'trials'?",
    f"{BASE}{GAMMA}pruner: {{warm: 3}}\n": "4: pruner.warm: unknown key; did you mean 'warmup'?",
    f"steps: 5\npreset: ppo/cartpol\n{GAMMA}": (
        "2: preset: unknown preset 'ppo/cartpol'; did you mean 'ppo/cartpole'? `axiomrl list presets` shows "
        "all of them."
    ),
    f"steps: 5\n{GAMMA}": " preset: nothing says what is tuned: give `preset`, `config`, or algo and env_id",
    f"{BASE}space: {{seed: [1, 2]}}\n": "3: space.seed: the study decides this by `seeds`",
    f"{BASE}space: {{evaluation.episodes: [1, 2]}}\n": (
        "3: space.evaluation.episodes: trials that are measured in different ways cannot be compared"
    ),
    f"{BASE}space: {{env_id: [CartPole-v0, CartPole-v1]}}\n": (
        "3: space.env_id: trials that are measured in different ways cannot be compared"
    ),
    f"{BASE}space: {{hyperparams: {{gamma: {{low: 0.9, high: 1}}}}}}\n": (
        "3: space.hyperparams: a section; name its fields by dotted keys: hyperparams.gamma"
    ),
    f"{BASE}space: {{}}\n": "3: space: nothing to search",
    f"{BASE}{GAMMA}seeds: [1, 2]\nheld_out: [2, 3]\n": (
        "5: held_out: 2 also among `seeds`, by which the best is chosen"
    ),
    f"{BASE}{GAMMA}held_out: [2, 2]\n": "4: held_out: the same seed twice",
    f"{BASE}{GAMMA}name: ../up\n": "4: name: letters, digits, '.', '_' and '-' only, got '../up'",
    f"{BASE.replace('1000', '5000')}{GAMMA}pruner: median\n": (
        "4: pruner: nothing to judge by before the end: evaluation.every_steps is 5000 and a run has 4000 "
        "steps; set it under `overrides`"
    ),
    f"{BASE}sampler: grid\nspace: {{hyperparams.gamma: {{low: 0, high: 1}}}}\n": (
        "4: space.hyperparams.gamma: the sampler grid needs choices, whole numbers or a step"
    ),
    f"{BASE}sampler: grid\nspace: {{num_envs: {{low: 1, high: 100001}}}}\n": (
        "3: sampler: a grid of 100,001 combinations; 100,000 are the most"
    ),
    f"{BASE.replace('1000', '1000, num_env: 3')}{GAMMA}": "1: num_env: unknown key; did you mean 'num_envs'?",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_elsewhere(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == [MISTAKES[text]]


def test_combinations_that_cannot_be_trained_are_noticed_beforehand(tmp_path: Path) -> None:
    some = "preset: ppo/cartpole\nsteps: 4000\nspace: {hyperparams.num_steps: [1, 64], num_envs: [1, 8]}\n"
    (warning,) = load_study(write(tmp_path, some + "overrides: {hyperparams.num_minibatches: 8}\n")).warnings
    assert "of 64 random combinations cannot be trained, and such trials fail: " in warning
    assert "hyperparams.num_minibatches: 8 does not divide the batch" in warning
    none = "preset: ppo/cartpole\nsteps: 4000\nspace: {hyperparams.num_steps: [1, 2]}\n"
    (problem,) = problems(tmp_path, none + "overrides: {hyperparams.num_minibatches: 64, num_envs: 16}\n")
    assert problem.startswith("3: space: no combination can be trained: ")
    assert "hyperparams.num_minibatches: 64 does not divide" in problem


@pytest.mark.parametrize(
    ("space", "named"),
    [
        ("env_kwargs.sutton_barto_reward: [true, false]", "env_kwargs.sutton_barto_reward"),
        ("env_kwargs: [{sutton_barto_reward: true}]", "env_kwargs"),
        (
            "env.max_episode_steps: [100, 200], env.frame_skip: [1, 2]",
            "env.max_episode_steps, env.frame_skip",
        ),
        ("env.atari.sticky_actions: [0.0, 0.25]", "env.atari.sticky_actions"),
        ("env.normalize_obs: [true, false], env.reward_scale: [0.1, 1.0]", None),
        ("hyperparams.gamma: [0.9, 0.99]", None),
    ],
)
def test_searching_over_the_task_itself_is_warned_of(tmp_path: Path, space: str, named: str | None) -> None:
    warnings = load_study(write(tmp_path, f"{BASE}space: {{{space}}}\n")).warnings
    text = "each value makes another task, so the scores of trials, and with them the verdict, may not be"
    assert warnings == (() if named is None else (f"{named}: {text} comparable",))


def test_a_preset_leaves_out_how_the_study_watches_its_runs(tmp_path: Path) -> None:
    base = "algo: a2c\nenv_id: CartPole-v1\nevaluation: {every_steps: 700}\n"
    overrides = "overrides: {evaluation.every_steps: 1000, logging.tensorboard: false, num_envs: 3}\n"
    rest = f"steps: 4000\n{GAMMA}"
    (tmp_path / "base.yaml").write_text(base)
    design = load_study(write(tmp_path, f"config: base.yaml\n{overrides}{rest}"))
    assert design.resolve({}).config.evaluation.every_steps == 1000
    found = design.preset({"hyperparams.gamma": 0.5, "checkpoint.keep_last": 2})
    assert found.config.evaluation.every_steps == 700  # the base's own
    assert found.config.logging.tensorboard
    assert (found.config.num_envs, found.config.hyperparams.gamma) == (3, 0.5)
    assert found.config.checkpoint.keep_last == 2  # searched, not set
    assert ("logging", "tensorboard") not in found.origins
    (tmp_path / "base.yaml").write_text(base.replace("700", "0"))
    needed = overrides.replace("num_envs: 3", "stopping.patience: 3")
    design = load_study(write(tmp_path, f"config: base.yaml\n{needed}{rest}"))
    assert design.preset({}).config.evaluation.every_steps == 1000  # patience needs evaluations


def test_a_grid_has_every_combination(tmp_path: Path) -> None:
    steps = "hyperparams.num_steps: {low: 4, high: 16, step: 4}"
    space = f"sampler: grid\nspace: {{{steps}, network.hidden: [[8], [16]]}}"
    design = load_study(write(tmp_path, BASE + space))
    assert [d.cells() for d in design.dimensions] == [[4, 8, 12, 16], ["[8]", "[16]"]]
    assert design.trials == 8
    assert load_study(write(tmp_path, BASE + space), trials=3).trials == 3
    assert load_study(write(tmp_path, BASE + space), trials=30).trials == 8
