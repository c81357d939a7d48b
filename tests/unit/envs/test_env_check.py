"""A broken env is described in words, and refused before step one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Diary, Settings, Unseeded
from gymnasium import spaces

from rl_training.envs import EnvConfig, check_env, findings, make_vector_env, probe
from rl_training.envs.wrappers import wrap
from rl_training.errors import EnvError

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ZERO = np.zeros(2, np.float32)


class Scripted(gymnasium.Env[Any, Any]):
    """Returns exactly what it is given."""

    def __init__(
        self, reset: Any = (ZERO, {}), step: Any = (ZERO, 0.0, False, False, {}), **spaces_: Any
    ) -> None:
        self.observation_space = spaces_.get("observation_space", BOX)
        self.action_space = spaces_.get("action_space", spaces.Discrete(2))
        self._reset, self._step = reset, step

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if isinstance(self._reset, Exception):
            raise self._reset
        return self._reset

    def step(self, action: Any) -> Any:
        if isinstance(self._step, Exception):
            raise self._step
        return self._step


def step(
    obs: Any = ZERO, reward: Any = 0.0, terminated: Any = False, truncated: Any = False, info: Any = None
) -> Any:
    return obs, reward, terminated, truncated, {} if info is None else info


MASK = {"action_mask": np.ones(2, np.int8)}
NESTED = spaces.Dict({"a": spaces.Dict({"b": BOX})})


@pytest.mark.parametrize(
    ("env", "finding"),
    [
        (Scripted(reset=ZERO), "error: reset() returned a ndarray; it must return (observation, info dict)"),
        (Scripted(reset=ValueError("no seed")), "error: reset(seed=…) raised ValueError: no seed"),
        (Scripted(step=step()[:4]), "error: step() returned 4 items (ndarray, float, bool, bool)"),
        (Scripted(step=KeyError("x")), "error: step() raised KeyError: 'x'"),
        (Scripted(reset=(np.zeros(3, np.float32), {})), "error: observation from reset() has shape (3,)"),
        (Scripted(reset=("text", {})), "error: observation from reset() has shape ()"),
        (Scripted(reset=(np.zeros(2, complex), {})), "error: observation from reset() has dtype complex128"),
        (Scripted(step=step(np.array([0, np.nan], np.float32))), "error: observation from step() holds NaN"),
        (
            Scripted(step=step(np.array([0, 3], np.float32))),
            "warning: observation from step() lies outside its space: "
            "3.0 is not within [-1.0, 1.0] at index (1,)",
        ),
        (
            Scripted(observation_space=spaces.Discrete(3), reset=(3, {})),
            "error: observation from reset() lies outside its space: 3 is not in Discrete(3)",
        ),
        (Scripted(step=step(np.zeros(2))), "warning: observation from step() has dtype float64"),
        (Scripted(step=step(reward=None)), "error: step() returned the reward None"),
        (Scripted(step=step(reward=np.inf)), "error: step() returned the reward inf; it must be finite"),
        (Scripted(step=step(reward=np.zeros(1))), "error: step() returned a reward of shape (1,)"),
        (
            Scripted(step=step(terminated=0)),
            "error: step() returned terminated=0 of type int; it must be a bool",
        ),
        (Scripted(step=step(truncated=None)), "error: step() returned truncated=None"),
        (Scripted(step=(ZERO, 0.0, False, False, None)), "error: step() returned info of type NoneType"),
        (Scripted(observation_space=spaces.Tuple([BOX])), "error: observation_space is a Tuple space"),
        (Scripted(observation_space=None), "error: observation_space is None, not a gymnasium Space"),
        (
            Scripted(observation_space=spaces.Dict({"t": spaces.Text(3)})),
            "error: observation_space['t'] is a Text",
        ),
        (
            Scripted(observation_space=NESTED, reset=({"a": {"b": ZERO}}, {}), step=step({"a": {"b": ZERO}})),
            "warning: observation_space['a'] is a nested Dict",
        ),
        (
            Scripted(observation_space=spaces.Dict({"a": BOX}), reset=({"b": ZERO}, {})),
            "error: observation from reset() and its space differ in the keys 'a', 'b'",
        ),
        (Scripted(action_space=spaces.Dict({"a": BOX})), "error: action_space is a Dict space"),
        (Scripted(action_space=spaces.Box(0, 3, (2,), np.int64)), "error: action_space is a Box of int64"),
        (
            Scripted(action_space=spaces.Box(-np.inf, np.inf, (2,))),
            "warning: action_space is an unbounded Box",
        ),
        (Scripted(action_space=spaces.MultiBinary((2, 2))), "error: action_space has shape (2, 2)"),
        (
            Scripted(reset=(ZERO, {"action_mask": np.ones(3)})),
            "error: info['action_mask'] from reset() has 3 entries; the action space needs 2",
        ),
        (
            Scripted(reset=(ZERO, {"action_mask": np.zeros(2)})),
            "error: info['action_mask'] from reset() allows no action at all",
        ),
        (
            Scripted(reset=(ZERO, MASK), action_space=BOX),
            "error: reset() gives info['action_mask'], which needs Discrete or MultiDiscrete actions",
        ),
        (Scripted(step=step(info=MASK)), "error: step() gives info['action_mask'] but reset() does not"),
        (Scripted(reset=(ZERO, MASK)), "warning: step() gave no info['action_mask'] although reset() did"),
        (
            Scripted(observation_space=spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(3)})),
            "error: observation_space['action_mask'] has shape (3,); Discrete(2) needs (2,)",
        ),
        (Scripted(), "warning: no time limit is known"),
        (
            Unseeded(),
            "warning: the same seed and actions gave something else the second time (from reset(seed=…) on)",
        ),
    ],
)
def test_findings(env: Any, finding: str) -> None:
    found = check_env(env)
    assert any(text.startswith(finding) for text in found), found


@pytest.mark.parametrize("config", [EnvConfig(), EnvConfig(frame_skip=2, frame_stack=2)])
@pytest.mark.parametrize(
    ("env", "finding"),
    [
        (Scripted(step=step()[:4]), "error: step() returned 4 items (ndarray, float, bool, bool); it must"),
        (Scripted(step=None), "error: step() returned a NoneType; it must return"),
        (Scripted(reset=(ZERO, {}, 1)), "error: reset() returned 3 items (ndarray, dict, int); it must"),
        (Scripted(step=ValueError("mine")), "error: step() raised ValueError: mine"),
    ],
)
def test_wrappers_do_not_hide_what_the_env_returned(env: Any, finding: str, config: EnvConfig) -> None:
    """They would only say that there were not enough values to unpack."""
    wrapped = wrap(gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.TimeLimit(env, 9)), config)
    (found,) = check_env(wrapped)
    assert found.startswith(finding)


def test_something_else_than_an_env() -> None:
    assert check_env("CartPole-v1") == ["error: str is not a gymnasium.Env"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1",
        "Pendulum-v1",
        "Acrobot-v1",
        "MountainCar-v0",
        "axiom/CartPoleNoVelocity-v0",
        "axiom/PendulumNoVelocity-v0",
    ],
)
def test_good_envs_have_no_findings(env_id: str) -> None:
    env = gymnasium.make(env_id, disable_env_checker=True)
    assert check_env(env) == []


@pytest.mark.parametrize(
    "name",
    [
        "Identity",
        "IdentityBox",
        "MultiDiscrete",
        "MultiBinary",
        "Masked",
        "Image",
        "DictObs",
        "Chain",
        "Fragile",
        "Recall",
    ],
)
def test_toy_envs_have_no_errors(name: str) -> None:
    found = findings(Settings(f"axiom/{name}-v0"))
    assert [text for text in found if not text.startswith("warning: no time limit")] == []


def test_all_errors_are_reported_before_step_one() -> None:
    bad = Scripted(step=step(np.zeros(3, np.float32), reward=np.nan, terminated=1))
    with pytest.raises(EnvError) as caught:
        make_vector_env(Settings("my env"), 2, env=lambda: bad)
    message = str(caught.value)
    for part in ("my env cannot be trained on", "shape (3,)", "reward nan", "terminated=1"):
        assert part in message
    with pytest.raises(EnvError, match="NaN"):
        probe(Settings("axiom/Fragile-v0", {"fault": "nan"}))
    with pytest.raises(EnvError, match="must be finite"):
        probe(Settings("axiom/Fragile-v0", {"fault": "nan_reward"}))


def test_a_mask_in_the_observation_is_respected_by_the_check() -> None:
    class Picky(Scripted):
        def step(self, action: Any) -> Any:
            assert action == 1
            return super().step(action)

    seen = {"obs": ZERO, "action_mask": np.array([0, 1], np.int8)}
    space = spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(2)})
    found = check_env(Picky((seen, {}), step(seen), observation_space=space))
    assert [text for text in found if text.startswith("error")] == []


def test_warnings_do_not_stop_training() -> None:
    with make_vector_env(Settings(), 1, env=Diary) as envs:
        assert envs.reset() is not None
