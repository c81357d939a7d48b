"""Devices that are there, settings that are put back, and randomness with names."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.errors import AxiomError, ConfigError, EnvError
from rl_training.runtime import device, video
from rl_training.runtime.device import resolve_device, torch_settings
from rl_training.runtime.random import RandomStreams, derive_seed
from rl_training.runtime.signals import SIGNALS, stop_on_signals
from rl_training.runtime.video import VideoWriter

CPU = torch.device("cpu")


def test_devices() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in ("cpu", "cuda")
    for name in ("tpu", "cuda:x", "cpu:0", ""):
        with pytest.raises(ConfigError, match="unknown device"):
            resolve_device(name)
    with pytest.raises(ConfigError, match="'cuda:99' is not available"):
        resolve_device("cuda:99")


@pytest.mark.parametrize(("setting", "exact"), [("auto", True), (True, True), (False, False)])
def test_torch_settings_hold_inside_and_are_put_back(setting: Any, exact: bool) -> None:
    def settings() -> tuple[int, bool, bool]:
        filled = torch.utils.deterministic.fill_uninitialized_memory
        return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), filled

    before = settings()
    with torch_settings(CPU, threads=2, deterministic=setting):
        assert settings() == (2, exact, setting != "auto")
    with pytest.raises(KeyError), torch_settings(CPU, threads=2, deterministic=setting):
        raise KeyError
    assert settings() == before


@pytest.mark.parametrize(("device", "products"), [("cuda", "high"), ("cpu", "highest")])
def test_tf32_is_for_matrix_products_on_a_gpu(device: str, products: str) -> None:
    with torch_settings(torch.device(device), threads=1, deterministic="auto", precision="tf32"):
        assert torch.get_float32_matmul_precision() == products
    assert torch.get_float32_matmul_precision() == "highest"


def test_products_of_full_precision_are_left_as_torch_has_them() -> None:
    # In a process of its own, as torch begins: by this setting, too, machine code is found on disk.
    done = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, check=True)
    before, inside, after = done.stdout.split()
    assert inside == after == before


PRODUCTS = """
import torch
from rl_training.runtime.device import torch_settings
print(torch.backends.cuda.matmul.fp32_precision)
for _ in range(2):
    with torch_settings(torch.device("cpu"), threads=1, deterministic="auto"):
        inside = torch.backends.cuda.matmul.fp32_precision
print(inside, torch.backends.cuda.matmul.fp32_precision)
"""


@pytest.mark.parametrize(("cores", "problem"), [(1, "2 threads of torch share 1 core "), (2, None)])
def test_more_threads_than_cores_are_warned_about(
    cores: int, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "available_threads", lambda: cores)
    with pytest.warns(UserWarning, match=problem) if problem else warnings.catch_warnings():
        if problem is None:
            warnings.simplefilter("error")
        with torch_settings(CPU, threads=2, deterministic="auto"):
            assert torch.get_num_threads() == 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_that_was_freed_is_used_again_without_asking_the_system() -> None:
    # In a process of its own: where arrays fit depends on what others have left in the heap.
    done = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=True)
    first, again, handed_back, kept, after = map(int, done.stdout.split())
    assert first > 20_000  # 12 arrays of 2,048 pages each
    assert again < 2000
    assert handed_back > 20_000
    assert kept < 2000
    assert after > 20_000  # all of it has been handed back


FREEING = """
import resource
import torch
from rl_training.runtime.device import hand_back_memory, torch_settings

def pages_asked_for():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [torch.ones(2**21) for _ in range(12)]  # 8 MiB each
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def in_the_long_run():
    return [pages_asked_for() for _ in range(6)][-1]  # it takes some rounds until all have their places

with torch_settings(torch.device("cpu"), threads=1, deterministic="auto"):
    print(pages_asked_for(), in_the_long_run())
    hand_back_memory()
    print(pages_asked_for(), in_the_long_run())
print(pages_asked_for())
"""


def test_streams_depend_on_seed_and_name_and_not_on_the_order_of_use() -> None:
    first, second = RandomStreams(1, CPU), RandomStreams(1, CPU)
    a = torch.rand(3, generator=first.get("a"))
    torch.rand(7, generator=second.get("b"))
    assert torch.equal(torch.rand(3, generator=second.get("a")), a)
    assert not torch.equal(torch.rand(3, generator=RandomStreams(2, CPU).get("a")), a)
    assert not torch.equal(torch.rand(3, generator=RandomStreams(1, CPU).get("b")), a)
    again = RandomStreams(99, CPU)
    again.load_state_dict(first.state_dict())
    assert torch.equal(torch.rand(3, generator=again.get("a")), torch.rand(3, generator=first.get("a")))


def test_a_position_on_another_kind_of_device_begins_a_stream_of_its_own() -> None:
    """Of a GPU's generator 16 bytes are saved, seed and offset; a CPU's has 5,056."""

    def drawn(*position: int) -> torch.Tensor:
        streams = RandomStreams(1, CPU)
        streams.load_state_dict({"a": torch.tensor(position, dtype=torch.uint8)})
        return torch.rand(3, generator=streams.get("a"))

    gpu = (7, *[0] * 7, 64, *[0] * 7)
    assert torch.equal(drawn(*gpu), drawn(*gpu))
    assert not torch.equal(drawn(*gpu), drawn(*gpu[:8], 65, *[0] * 7))
    assert not torch.equal(drawn(*gpu), torch.rand(3, generator=RandomStreams(1, CPU).get("a")))


def test_derived_seeds_fit_63_bits_and_differ() -> None:
    seeds = {derive_seed(s, name) for s in range(50) for name in ("weights", "evaluation", "test")}
    assert len(seeds) == 150
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(3, "x", 1) == derive_seed(3, "x", 1) != derive_seed(3, "x", 2)
    assert derive_seed(2**80, "x") >= 0


@pytest.mark.parametrize("number", [each for each in SIGNALS if each != signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    trainer: Any = SimpleNamespace(interrupted=None)
    trainer.interrupt = lambda name: setattr(trainer, "interrupted", name)
    before = [signal.getsignal(each) for each in SIGNALS]
    with stop_on_signals(trainer):
        os.kill(os.getpid(), number)
        assert trainer.interrupted == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    seen = []

    def work() -> None:
        with stop_on_signals(SimpleNamespace(interrupted=None)):  # type: ignore[arg-type]
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_frames_become_a_video(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason='pip install "axiomrl[video]"')
    with VideoWriter(tmp_path / "new" / "out.mp4", fps=10) as writer:
        for brightness in range(5):
            writer.write(np.full((33, 48, 3), 40 * brightness, np.uint8))
        with pytest.raises(EnvError, match="no rgb_array frames"):
            writer.write(None)
    assert writer.frames == 5
    assert b"ftyp" in (tmp_path / "new" / "out.mp4").read_bytes()[:16]


def test_a_video_that_cannot_be_written_is_refused_before_its_first_frame(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason='pip install "axiomrl[video]"')
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "folder.mp4").mkdir()
    refused = {
        "film.txt": r"film.txt: no kind of video that can be written: use .mp4, .m4v",
        "film": "no kind of video",
        "film.gif": "no kind of video",
        "folder.mp4": "is a directory",
        "file/film.mp4": "cannot be written: ",
    }
    for name, reason in refused.items():
        with pytest.raises(AxiomError, match=reason):
            VideoWriter(tmp_path / name, fps=10)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder.mp4"}


@pytest.mark.parametrize("suffix", video.SUFFIXES)
def test_every_kind_of_video_that_is_offered_can_be_written(suffix: str, tmp_path: Path) -> None:
    reader = pytest.importorskip("imageio_ffmpeg", reason='pip install "axiomrl[video]"')
    with VideoWriter(tmp_path / f"film{suffix}", fps=10) as writer:
        for brightness in range(5):
            writer.write(np.full((32, 48, 3), 40 * brightness, np.uint8))
    assert reader.count_frames_and_secs(str(tmp_path / f"film{suffix}"))[0] == 5


def test_an_ffmpeg_that_fails_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield
        raise OSError("[Errno 32] Broken pipe\n\nFFMPEG COMMAND:\nffmpeg -y")

    monkeypatch.setattr(video, "require_video", lambda: SimpleNamespace(write_frames=broken))
    with (
        pytest.raises(AxiomError, match=r"film.mp4: cannot be written: \[Errno 32\] Broken pipe$") as caught,
        VideoWriter(tmp_path / "film.mp4", fps=10) as writer,
    ):
        writer.write(np.zeros((32, 48, 3), np.uint8))
    assert caught.value.__suppress_context__  # ffmpeg's command is no traceback's business


@pytest.mark.parametrize("current", [None, 0, 1])
def test_a_gpu_has_its_number(current: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would not be equal to what its own tensors say."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: current is not None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    entered: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or nullcontext())
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", current or 0)
    for number in range(2):
        device = resolve_device(f"cuda:{number}")
        assert device == torch.device("cuda", number)
        with torch_settings(device, threads=1, deterministic="auto"):
            assert entered == ([] if number == (current or 0) else [device])
        entered.clear()
