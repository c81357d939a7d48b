"""What stands in for operations in compiled updates gives the same numbers."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from rl_training.runtime import products
from rl_training.runtime.compilation import Plan, Updates
from rl_training.runtime.decompositions import DECOMPOSED
from rl_training.runtime.device import find_compiler
from rl_training.runtime.tracing import trace

aten = torch.ops.aten
tanh, addmm, baddbmm, adam = (
    DECOMPOSED[f]
    for f in (aten.tanh.default, aten.addmm.default, aten.baddbmm.default, aten._fused_adam_.default)
)


def test_tanh_is_off_by_a_few_units_in_the_last_place() -> None:
    sizes = torch.cat([torch.linspace(0, 12, 1_000_001), torch.logspace(-37, 1, 100_001)])
    exact = sizes.double().tanh()
    unit = torch.nextafter(exact.float(), torch.tensor(2.0)).double() - exact.float().double()
    assert ((tanh(sizes).double() - exact).abs() / unit).max() < 7.0
    torch.testing.assert_close(tanh(-sizes), -tanh(sizes), rtol=0.0, atol=0.0)


def test_tanh_keeps_its_range_and_what_is_no_number() -> None:
    ends = tanh(torch.tensor([-math.inf, -50.0, 0.0, 50.0, math.inf, math.nan]))
    assert ends[:5].tolist() == pytest.approx([-1.0, -1.0, 0.0, 1.0, 1.0], abs=1e-7)
    assert ends.abs().nan_to_num().max() <= 1.0
    assert ends[5].isnan()
    assert tanh(torch.zeros(2, dtype=torch.float64)) is NotImplemented


def test_biases_are_added_to_products() -> None:
    bias, left, right = torch.randn(2, 1, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    expected = torch.baddbmm(bias.double(), left.double(), right.double(), beta=0.5, alpha=2.0)
    torch.testing.assert_close(baddbmm(bias, left, right, beta=0.5, alpha=2.0), expected.float())
    row, first, second = bias[0, 0], left[0], right[0]
    expected = torch.addmm(row.double(), first.double(), second.double(), beta=0.5, alpha=2.0)
    torch.testing.assert_close(addmm(row, first, second, beta=0.5, alpha=2.0), expected.float())
    assert torch.equal(addmm(row, first, second), first @ second + row)
    assert addmm(*(tensor.to("meta") for tensor in (row, first, second))) is NotImplemented


def test_norms_are_those_of_torchs_own() -> None:
    tensors = [torch.randn(50, 3), torch.randn(7), torch.zeros(2)]
    norm = DECOMPOSED[aten._foreach_norm.Scalar]
    torch.testing.assert_close(norm(tensors), list(torch._foreach_norm(tensors)))
    assert norm([tensor.to("meta") for tensor in tensors]) is NotImplemented


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95)])
@pytest.mark.parametrize("step", [1.0, 100_000.0])
def test_adam_takes_the_step_of_torchs_own(betas: tuple[float, float], step: float) -> None:
    tensors = [torch.randn(1000), torch.randn(1000), torch.randn(1000), torch.rand(1000)]
    given = {"lr": 1e-3, "beta1": betas[0], "beta2": betas[1], "eps": 1e-8}
    rest = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
    ours, theirs = ([[t.clone()] for t in tensors] for _ in range(2))
    count = [torch.tensor(step)]
    adam(*ours, [], count, **given, **rest, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0))
    torch._fused_adam_(
        *theirs, [], count, **given, **rest, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0)
    )
    for i in (0, 2, 3):  # weights and both moments
        torch.testing.assert_close(ours[i], theirs[i])


def test_moments_of_what_gets_no_gradient_any_more_end_at_zero() -> None:
    """They shrink to numbers that a processor has no exponent for, and torch's own stay there."""
    given = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    rest = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
    start = [torch.randn(50), torch.randn(50), torch.randn(50), torch.rand(50)]
    start[0][0] = 0.0
    ours, theirs = ([[t.clone()] for t in start] for _ in range(2))
    tiny = torch.finfo(torch.float32).tiny

    def odd(state: list[list[torch.Tensor]]) -> int:
        return sum(int(((t.abs() < tiny) & (t != 0)).sum()) for (t,) in state[2:])

    seen = 0
    for update in range(12_000):
        count = [torch.tensor(float(update + 1))]
        for step, state in ((adam, ours), (torch._fused_adam_, theirs)):
            step(*state, [], count, **given, **rest)
            state[1][0].zero_()
        seen += odd(ours)
    assert seen == 0
    assert odd(theirs) > 0
    torch.testing.assert_close(ours[0][0], theirs[0][0])
    assert not ours[2][0].any()
    assert not ours[3][0].any()


@pytest.fixture(scope="session")
def onednn() -> None:
    """oneDNN's products are there, whether they are the quicker ones on this processor or not."""
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    assert products.loaded()


@pytest.fixture
def by_onednn(onednn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor of which MKL uses half, with small matrices."""
    monkeypatch.setattr(products, "quicker", lambda: "onednn")
    monkeypatch.setattr(products, "ENOUGH", 5 * 6 * 7)
    monkeypatch.setattr(products, "NARROW", range(3, 4))


MATRICES = {
    "product": (lambda a, b, c: torch.mm(a, b), 1),
    "both transposed": (lambda a, b, c: torch.mm(b.t(), a.t()), 1),
    "with a bias": (lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2.0), 1),
    "a layer": (lambda a, b, c: torch.nn.functional.linear(a, b.t().contiguous(), c), 1),
    "a stack": (lambda a, b, c: torch.bmm(torch.stack([a, -a]), torch.stack([b, 3.0 * b])), 1),
    "a stack of transposed ones": (
        lambda a, b, c: torch.bmm(torch.stack([b, -b]).transpose(1, 2), torch.stack([a, 3.0 * a]).mT),
        1,
    ),
    "parts of larger ones": (lambda a, b, c: torch.mm(a.repeat(2, 2)[::2, 3:9], b.repeat(1, 2)[:, ::2]), 1),
    "a stack with biases": (
        lambda a, b, c: torch.baddbmm(c, a.expand(3, -1, -1), torch.stack([b, b * b, 1.0 - b])),
        1,
    ),
}


@pytest.mark.parametrize("case", MATRICES)
@pytest.mark.usefixtures("by_onednn")
def test_products_by_onednn_are_products(case: str) -> None:
    function, count = MATRICES[case]
    a, b, c = torch.randn(5, 6), torch.randn(6, 7), torch.randn(7)
    graph = trace(lambda *tensors: [function(*tensors)], [a, b, c], [], [])
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert calls.count(torch.ops.axiomrl.product.default) == count
    assert not {aten.mm.default, aten.addmm.default, aten.bmm.default} & set(calls)
    torch.testing.assert_close(graph(a, b, c)[0], function(*(x.double() for x in (a, b, c))).float())


@pytest.mark.usefixtures("by_onednn")
def test_a_gradient_has_its_products_by_onednn_too() -> None:
    x, weight = torch.randn(6, 8), torch.randn(8, 8, requires_grad=True)

    def slope(x: torch.Tensor) -> list[torch.Tensor]:
        hidden = torch.relu(x @ weight) @ weight
        return list(torch.autograd.grad(hidden.square().sum(), [weight]))

    graph = trace(slope, [x], [weight], [])
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert calls.count(torch.ops.axiomrl.product.default) == 5  # two forward, two for weights, one between
    torch.testing.assert_close(graph(x, weight.detach())[0], slope(x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((256, 256), (256, 256)),
        ((37, 300), (300, 400)),
        ((2048, 64), (64, 64)),
        ((2, 256, 256), (2, 256, 256)),
        ((10, 37, 300), (10, 300, 6)),
    ],
)
@pytest.mark.usefixtures("onednn")
def test_products_by_onednn_are_the_same_wherever_the_numbers_lie(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    def moved(matrix: torch.Tensor, by: int) -> torch.Tensor:
        return torch.empty(matrix.numel() + by)[by:].view(matrix.shape).copy_(matrix)

    a, b = torch.randn(left), torch.randn(right)
    first = products.product(a, b)
    torch.testing.assert_close(first, (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-4)
    for by in (1, 3, 4, 8):
        assert torch.equal(products.product(moved(a, by), moved(b, by)), first)


@pytest.mark.usefixtures("by_onednn")
def test_products_that_are_small_or_of_another_kind_are_left_to_torch() -> None:
    a, b = torch.randn(5, 6), torch.randn(6, 7)
    assert products.pays(a, b)
    assert not products.pays(a[:4], b)
    assert not products.pays(a.double(), b.double())
    assert not products.pays(a.bfloat16(), b.bfloat16())
    assert not products.pays(a.to("meta"), b.to("meta"))
    assert products.pays(a, b[:, :3])  # results of few columns are worth it sooner
    assert not products.pays(a, b[:, :4])
    assert not products.pays(a.repeat(100, 1), b[:, :2])  # those of fewer never
    assert DECOMPOSED[aten.mm.default](a[:4], b) is NotImplemented
    assert DECOMPOSED[aten.bmm.default](a[None, :4], b[None]) is NotImplemented


@pytest.mark.parametrize(
    ("maker", "instructions", "expected"),
    [
        ("AuthenticAMD", "AVX512", "onednn"),
        ("AuthenticAMD", "AVX2", "mkl"),
        ("GenuineIntel", "AVX512", "mkl"),
    ],
)
def test_who_multiplies_follows_from_the_processor(
    maker: str, instructions: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "processor", lambda: {"vendor_id": maker})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    monkeypatch.setattr(products, "loaded", lambda: True)
    assert products.quicker.__wrapped__() == expected


def refuses(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("it refuses")


@pytest.mark.parametrize(
    ("source", "compiler", "why"),
    [
        ("int product;", None, "no C++ compiler was found"),
        ("not C++", "c++", "error: "),
        ("int product;", "c++", "it refuses"),
        ('extern "C" void nobody_has_it(); void product() { nobody_has_it(); }', "c++", "nobody_has_it"),
    ],
)
def test_without_the_operator_torch_multiplies_and_says_why(
    source: str, compiler: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler and not shutil.which(compiler):
        pytest.skip("needs a C++ compiler")
    (tmp_path / "source.cpp").write_text(source)
    monkeypatch.setattr(products, "SOURCE", tmp_path / "source.cpp")
    monkeypatch.setattr(products, "find_compiler", lambda: compiler)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(products, "product", refuses)
    with pytest.warns(UserWarning, match=f"left to MKL.*{re.escape(why)}"):
        assert not products.loaded.__wrapped__()
    monkeypatch.setattr(products, "loaded", lambda: False)
    assert products.quicker.__wrapped__() == "mkl"


def test_whoever_looks_for_the_operator_while_tracing_leaves_no_trace(onednn: None) -> None:
    def run(tensor: torch.Tensor) -> list[torch.Tensor]:
        assert products.loaded.__wrapped__()
        return [tensor + 1]

    graph = trace(run, [torch.ones(2)], [], [])
    assert [node.name for node in graph.graph.nodes if node.op == "call_function"] == ["add"]


def test_the_operator_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "source.cpp").write_text("int product;")
    monkeypatch.setattr(products, "SOURCE", tmp_path / "source.cpp")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    first = products._compiled()
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [first.name]
    made = first.stat().st_mtime_ns
    assert products._compiled() == first
    assert first.stat().st_mtime_ns == made
    (tmp_path / "source.cpp").write_text("float product;")
    assert products._compiled() != first


def test_a_damaged_operator_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "source.cpp").write_text("int product;")
    monkeypatch.setattr(products, "SOURCE", tmp_path / "source.cpp")
    monkeypatch.setattr(products, "product", lambda left, right: left)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    library = products._compiled()
    whole = library.read_bytes()
    library.write_bytes(whole[:100])
    assert products.loaded.__wrapped__()
    assert library.read_bytes()[:4] == whole[:4]
    assert library.stat().st_size == len(whole)


def test_who_multiplies_is_among_what_decides_the_bits() -> None:
    algorithm = type("Algorithm", (), {"kind": lambda self, number: 0})()
    compiled, eager = (Updates(algorithm, Plan(mode, "")) for mode in ("compiled", "eager"))
    assert compiled.surroundings["products"] == compiled.describe()["products"] == products.quicker()
    assert "products" not in {**eager.surroundings, **eager.describe()}
