"""Making envs: by id, by function, ready-made; and what is said when that fails."""

from __future__ import annotations

import re
import sys
import types
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
from envs_helpers import Diary, Settings

from rl_training.envs import EnvConfig, factory, make_env, make_vector_env, probe, registered
from rl_training.envs.backends import describe_failure
from rl_training.envs.kinds import BACKENDS, BackendName
from rl_training.envs.makers import MAKERS
from rl_training.errors import EnvError, MissingExtraError, UnknownNameError


def test_probe_says_what_an_env_shows_and_takes() -> None:
    spec = probe(Settings())
    assert spec.observation_space.shape == (4,)
    assert spec.action_space == gymnasium.spaces.Discrete(2)


def test_a_failure_is_placed_outside_of_libraries() -> None:
    try:
        np.linalg.inv(np.zeros((2, 2)))
    except np.linalg.LinAlgError as error:
        text = describe_failure("step()", error)
    place = r"\(.*test_env_factory\.py:\d+ in test_a_failure_is_placed_outside_of_libraries\)"
    assert re.fullmatch(rf"step\(\) raised LinAlgError: Singular matrix {place}", text)


def test_env_kwargs_reach_the_env() -> None:
    assert probe(Settings("axiom/Identity-v0", {"n": 9})).action_space == gymnasium.spaces.Discrete(9)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPol-v1", "unknown env 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("cartpole-v1", "did you mean 'CartPole-v1'?"),
        ("CartPole-v9", "did you mean 'CartPole-v1'? Registered versions: CartPole-v0, CartPole-v1."),
        ("axiom/Identiti-v0", "did you mean 'axiom/Identity-v0'?"),
        ("mine/Env-v0", "Nothing is registered below mine/: name the package that does it with --import."),
        ("LunarLandr-v3", "did you mean 'LunarLander-v3'?"),
        ("Cart Pole!", "An id looks like Name-v0"),
        ("zzzz-v0", "`axiomrl list envs` shows all of them. One of your own needs --import MODULE."),
    ],
)
def test_unknown_ids_name_the_nearest(env_id: str, words: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        probe(Settings(env_id))
    assert words in str(caught.value)
    assert ("--import" in str(caught.value)) == env_id.startswith(("mine/", "zzzz"))


def test_an_id_without_version_means_the_newest() -> None:
    assert registered.find_spec("CartPole").id == "CartPole-v1"


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*args: Any, **kwargs: Any) -> Any:
        raise gymnasium.error.DependencyNotInstalled("something is not installed")

    monkeypatch.setattr(gymnasium, "make", lacking)
    for env_id, extra in (
        ("LunarLander-v3", "box2d"),
        ("HalfCheetah-v5", "mujoco"),
        ("CartPole-v1", "classic"),
    ):
        with pytest.raises(MissingExtraError, match=env_id) as caught:
            probe(Settings(env_id))
        assert f'pip install "axiomrl[{extra}]"' in str(caught.value)
    with pytest.raises(EnvError, match="something is not installed"):
        probe(Settings("axiom/Chain-v0"))


def test_atari_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        probe(Settings("ALE/Pong-v5"))
    assert caught.value.extra == "atari"


def test_rendering_without_pygame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with make_vector_env(Settings(), 1, render_mode="rgb_array") as envs:
        envs.reset()
        with pytest.raises(MissingExtraError, match=r"rendering CartPole-v1.*classic"):
            envs.render()


def test_bad_env_kwargs_name_the_key() -> None:
    with pytest.raises(EnvError, match=r"env_kwargs.lenght: .*axiom/Identity-v0.* did you mean|it takes"):
        probe(Settings("axiom/Identity-v0", {"lenght": 3}))
    with pytest.raises(EnvError, match=r"env_kwargs.sutton_bartow: .*did you mean 'sutton_barto_reward'\?"):
        probe(Settings("CartPole-v1", {"sutton_bartow": True}))
    with pytest.raises(EnvError, match=r"env_kwargs.max_episode_steps .* set env.max_episode_steps instead"):
        probe(Settings("CartPole-v1", {"max_episode_steps": 3}))
    with pytest.raises(EnvError, match=r"making env axiom/Identity-v0 with env_kwargs {'n': -1} raised"):
        probe(Settings("axiom/Identity-v0", {"n": -1}))


def test_module_prefix_imports_the_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    source = (
        "import gymnasium\n"
        "gymnasium.register('fresh/Made-v0', 'rl_training.envs.toy:Identity', kwargs={'n': 11})\n"
    )
    (tmp_path / "fresh_env_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert probe(Settings("fresh_env_module:fresh/Made-v0")).action_space == gymnasium.spaces.Discrete(11)
    finally:
        gymnasium.registry.pop("fresh/Made-v0", None)
    with pytest.raises(EnvError, match="importing no_such_module failed with ModuleNotFoundError"):
        probe(Settings("no_such_module:Thing-v0"))


def test_a_function_serves_any_number_of_envs() -> None:
    made = []

    def make() -> Any:
        made.append(Diary())
        return made[-1]

    with make_vector_env(Settings(), 3, env=make) as envs:
        envs.reset()
        assert len({id(env) for env in made}) == len(made) == 4  # one was for the check


def test_a_function_that_always_returns_the_same_env_serves_only_one() -> None:
    env = Diary()
    with make_vector_env(Settings(), 1, env=lambda: env) as envs:
        envs.reset()
    wrapped = lambda: gymnasium.wrappers.ClipReward(env, -1, 1)  # noqa: E731
    for make in (lambda: env, wrapped):
        with pytest.raises(EnvError, match="returned the same env twice, which cannot serve 2 envs"):
            make_vector_env(Settings(), 2, env=make)


def test_what_is_neither_an_env_nor_a_function_is_named() -> None:
    expected = "env: expected an env or a function that makes one, got"
    for env, kind in (("CartPole-v1", "str"), (gymnasium.make_vec("CartPole-v1", 2), r"\w*VectorEnv")):
        with pytest.raises(EnvError, match=f"{expected} {kind}; an id goes in as env_id="):
            probe(Settings(), env)  # type: ignore[arg-type]


def test_a_function_that_fails_or_makes_something_else() -> None:
    with pytest.raises(EnvError, match=r"the function passed as env raised ZeroDivisionError"):
        make_vector_env(Settings(), 1, env=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(EnvError, match=r"returned a SimpleNamespace, not a gymnasium.Env"):
        make_vector_env(Settings(), 1, env=types.SimpleNamespace)  # type: ignore[arg-type]


def test_a_ready_made_env_serves_one() -> None:
    env = Diary()
    closed: list[bool] = []
    env.close = lambda: closed.append(True)  # type: ignore[method-assign]
    with pytest.raises(EnvError, match="cannot serve 2 envs: pass a function"):
        make_vector_env(Settings(), 2, env=env)
    envs = make_vector_env(Settings(), 1, env=env)
    envs.reset()
    assert env.seed == envs.episode_seeds[0]  # it is the one that is played with
    with pytest.raises(EnvError, match="in use and cannot be copied: pass a function"):
        make_vector_env(Settings(), 1, env=env)
    envs.close()
    assert not closed  # it stays the user's
    make_vector_env(Settings(), 1, env=env).close()


def test_a_ready_made_env_with_a_spec_is_copied_for_evaluation() -> None:
    env = gymnasium.make("axiom/Identity-v0", n=6)
    with (
        make_vector_env(Settings(), 1, env=env) as training,
        make_vector_env(Settings(), 2, env=env) as evaluation,
    ):
        training.reset()
        target = env.unwrapped.target  # type: ignore[attr-defined]
        evaluation.reset()
        evaluation.step(np.zeros(2, dtype=np.int64))
        assert env.unwrapped.target == target  # type: ignore[attr-defined]
        assert evaluation.spec.action_space == gymnasium.spaces.Discrete(6)
        assert probe(Settings(), env).action_space == gymnasium.spaces.Discrete(6)
        assert env.unwrapped.target == target  # type: ignore[attr-defined]


def test_make_env_wraps_like_the_vector_env() -> None:
    settings = Settings("axiom/Masked-v0", {}, EnvConfig(max_episode_steps=2))
    env = make_env(settings)
    assert env.observation_space == probe(settings).observation_space
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]


def test_unknown_backend() -> None:
    words = r"unknown env backend 'fast': use auto, sync \(all envs\), .*native \(CartPole\)"
    with pytest.raises(EnvError, match=words):
        make_vector_env(Settings(), 1, backend="fast")
    assert factory.make_vector_env is make_vector_env


def test_the_table_of_backends_is_true() -> None:
    assert get_args(BackendName) == ("auto", *BACKENDS)
    assert [*MAKERS, "batched"] == list(BACKENDS)
    for name, kind in BACKENDS.items():
        if not kind.atari_only:
            with make_vector_env(Settings(), 2, backend=name) as envs:
                envs.reset()
                assert (envs.backend, envs.resume_grade[0]) == (name, "exact")
                assert ("replayed" in envs.resume_grade[1]) == kind.replays
        assert (kind.comes_back == "not at all") == (name == "ale")  # test_atari shows what it gives
