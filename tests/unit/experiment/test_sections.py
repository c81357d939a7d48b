"""Nested mappings: what lies over what."""

from __future__ import annotations

from rl_training.experiment.sections import ABSENT, differing, flat, merged, nested


def test_sections_are_merged_and_values_replaced() -> None:
    base = {"seed": 1, "env": {"backend": "sync", "atari": {"threads": 2}}, "tags": [1]}
    over = {"env": {"atari": {"noop_max": 0}}, "tags": [2], "device": "cpu"}
    assert merged(base, over) == {
        "seed": 1, "env": {"backend": "sync", "atari": {"threads": 2, "noop_max": 0}}, "tags": [2],
        "device": "cpu",
    }  # fmt: skip
    assert merged(base, {"env": None, "seed": {"a": 1}}) == {"seed": {"a": 1}, "env": None, "tags": [1]}
    assert base["env"] == {"backend": "sync", "atari": {"threads": 2}}  # neither is written to


def test_a_dotted_key_is_a_part_of_a_configuration() -> None:
    assert nested("env.atari.threads", 2) == {"env": {"atari": {"threads": 2}}}
    assert nested("network", {"hidden": [8]}) == {"network": {"hidden": [8]}}


def test_values_by_the_keys_that_lead_to_them() -> None:
    values = {"seed": 1, "env": {"atari": {"threads": 2}, "resize": [8, 8]}, "env_kwargs": {}}
    assert dict(flat(values)) == {("seed",): 1, ("env", "atari", "threads"): 2, ("env", "resize"): [8, 8]}


def test_what_differs_between_two_has_the_values_of_both() -> None:
    one = {"seed": 1, "env": {"noop": 1, "same": [1]}, "env_kwargs": {}, "gone": 2}
    two = {"seed": 1.0, "env": {"noop": True, "same": [1]}, "env_kwargs": {"g": None}}
    assert list(differing(one, two)) == [
        (("env", "noop"), 1, True), (("gone",), 2, ABSENT), (("env_kwargs", "g"), ABSENT, None),
    ]  # fmt: skip
