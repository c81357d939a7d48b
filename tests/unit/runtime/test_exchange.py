"""What a learner and its sampler exchange."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from rl_training.envs.processes import process_context
from rl_training.policies.normalizer import ObsNormalizer
from rl_training.runtime.exchange import SharedTensors, SharedWeights, packed, unpacked


class Policy(nn.Module):
    """Weights and statistics of several kinds."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3, 5)
        self.normalizer = ObsNormalizer((3,))
        self.register_buffer("steps", torch.tensor(seed))
        self.register_buffer("brief", torch.rand(3).bfloat16())


def test_weights_arrive_whole_and_only_when_they_are_sent() -> None:
    memory = SharedTensors(process_context())
    learner, sampler = Policy(1), Policy(2)
    learner.normalizer.update(torch.randn(20, 3) * 4.0 + 2.0)
    ours, theirs = SharedWeights(learner, memory.allocate), SharedWeights(sampler, memory.found())
    ours.publish()
    sent = {name: value.clone() for name, value in learner.state_dict().items()}
    learner.layer.weight.data.zero_()
    theirs.adopt()
    for name, value in sampler.state_dict().items():
        assert torch.equal(value, sent[name]), name
    obs = torch.randn(4, 3)
    assert torch.equal(sampler.normalizer(obs), learner.normalizer(obs))  # which is derived
    ours.publish()
    theirs.adopt()
    assert not sampler.layer.weight.any()


def test_shared_tensors_are_found_again_in_their_order_and_begin_where_torch_s_own_do() -> None:
    memory = SharedTensors(process_context())
    kinds = [((3, 2), torch.float32), ((), torch.int64), ((5,), torch.bool), ((7,), torch.float64)]
    made = [memory.allocate(*kind) for kind in kinds]
    found = memory.found()
    for tensor, kind in zip(made, kinds, strict=True):
        tensor.fill_(1)
        again = found(*kind)
        assert (again.shape, again.dtype) == kind
        assert torch.equal(tensor, again)
        assert tensor.data_ptr() % 64 == 0


def test_messages_keep_tensors_and_arrays_apart() -> None:
    tree = {"a": torch.arange(3), "b": [np.arange(2), None, 1.5], "c": {"d": torch.ones(())}}
    again = unpacked(packed(tree))
    assert torch.equal(again["a"], tree["a"])
    assert isinstance(again["b"][0], np.ndarray)
    assert again["b"][1:] == [None, 1.5]
    assert torch.equal(again["c"]["d"], torch.ones(()))
