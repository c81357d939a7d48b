"""Writes the generated parts of `docs/performance.md` and of the README, and plots, from records of speed.

python docs/generate_performance.py            rewrite the generated part of both pages, and the plots
python docs/generate_performance.py --check    exit 1 if a page is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated import bring_up_to_date, with_generated

PAGE = Path(__file__).with_name("performance.md")
README = Path(__file__).parents[1] / "README.md"
PLOTS = Path(__file__).with_name("_static")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
OURS, SB3, SBX = "axiomrl", "stable-baselines3", "sbx"
BEFORE = f"{OURS}, before"
ALIKE = f"{SB3}, 4 at evaluations"
LABELS = {
    SB3: "Stable-Baselines3",
    ALIKE: "Stable-Baselines3, 4 at evaluations",
    SBX: "SBX",
    "tianshou": "Tianshou",
    "torchrl": "TorchRL",
}
COLOURS = {
    OURS: "tab:blue",
    f"{OURS}, native": "tab:cyan",
    f"{OURS}, pipelined": "tab:purple",
    f"{OURS}, two learners": "tab:green",
    BEFORE: "tab:gray",
    LABELS[SB3]: "tab:orange",
    LABELS[SBX]: "tab:red",
}
"""Of the lines in all plots."""
CEILINGS = ("envs alone", "Gymnasium's vector alone", "env alone")
Result = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A file of results and how it is shown."""

    name: str
    title: str
    text: str
    tables: Callable[[Result], Iterator[str]]
    plot: Callable[[Result], tuple[str, dict[str, list[tuple[float, float]]], str]] | None = None
    """The axis' label, the lines and a description."""
    command: str = ""
    """What measures it, where that is not `make bench`."""

    @property
    def result(self) -> Result | None:
        """What was measured, if it was."""
        path = RESULTS / f"speed-{self.name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def section(self, result: Result | None) -> Iterator[str]:
        """Its part of the page."""
        yield from (f"### {self.title}", "", self.text, "")
        if result is None:
            yield from (f"Not measured yet: `{self.command_with()}`.", "")
            return
        if self.plot is not None:
            yield from (f"![{self.plot(result)[2]}](_static/performance-{self.name}.svg)", "")
        yield from self.tables(result)
        yield from (measured_with(self, result), "")

    def command_with(self, older: bool = False) -> str:
        """The command that measures it, beside an older checkout if that was done."""
        return self.command or f'make bench PARTS="{self.name}{" -- --before FOLDER" * older}"'


def measured_with(part: Part, result: Result) -> str:
    """Where figures come from."""
    versions = result["versions"]
    states = [result["git"]] if "git" in result else [figure["git"] for figure in result["results"]]
    commits = " and ".join(dict.fromkeys(f"`{str(state.get('commit'))[:7]}`" for state in states if state))
    changed = " with uncommitted changes" if any(state and state.get("is_dirty") for state in states) else ""
    known = {**LABELS, "sbx-rl": "SBX", "jax": "JAX", "d3rlpy": "d3rlpy"}
    peers = [f"{label} {versions[key]}" for key, label in known.items() if key in versions]
    hardware = result["hardware"]
    model = f" ({hardware['cpu_model']})" if "cpu_model" in hardware else ""  # not in older records
    machine = f"{', '.join([*hardware['gpus'], hardware['cpu']])}{model}, {hardware['cores']} cores"
    made = ", ".join([f"torch {versions['torch']}", *peers])
    older = "before" in result
    before = f", *before* at `{result['before'][:7]}`" if older else ""
    return (
        f"`{part.command_with(older)}` at {commits}{changed}{before}: {made}; {machine}. "
        f"All figures are in `benchmarks/results/speed-{part.name}.json`."
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """As Markdown; the first column is a label, the others are numbers."""
    yield f"| {' | '.join(head)} |"
    yield "|---|" + "--:|" * (len(head) - 1)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def labelled(name: str) -> str:
    """What a contender is called on the page."""
    return LABELS.get(name, name)


def names_of(results: Sequence[Result], figure: str = "steps_per_second") -> list[str]:
    """Contenders in the order in which they take turns; ceilings last."""
    names = dict.fromkeys(name for result in results for name in result[figure])
    return sorted(names, key=lambda name: (name in CEILINGS, not name.startswith(OURS)))


def count(value: float | None) -> str:
    """A number of some size, or nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def speeds(label: str, what: Callable[[Result], str], results: Sequence[Result]) -> Iterator[str]:
    """Steps a second of all, and how many times that of each peer ours is."""
    names = names_of(results)
    peers = peers_of(names)
    head = [label, *(labelled(name) for name in names), *(f"times {labelled(peer)}" for peer in peers)]
    yield from table(head, [
        [what(result), *(count(result["steps_per_second"].get(name)) for name in names),
         *(count(ratio(result, peer)) for peer in peers)]
        for result in results
    ])  # fmt: skip


def peers_of(names: Iterable[str]) -> list[str]:
    """Those of the contenders that are other libraries."""
    return [name for name in names if name not in CEILINGS and not name.startswith(OURS)]


def ratio(result: Result, peer: str, who: str = OURS) -> float | None:
    """How many times as fast as a peer, where both were measured."""
    rates = result["steps_per_second"]
    return rates[who] / rates[peer] if who in rates and peer in rates else None


def parts_of_a_step(label: str, what: Callable[[Result], str], results: Sequence[Result]) -> Iterator[str]:
    """How fast collection and updates would be alone."""
    named = names_of(results, "collection_steps_per_second")
    # Pipelined, the two overlap: what the learner sees of collection is the wait for it.
    names = [name for name in named if name not in CEILINGS and not name.endswith(", pipelined")]
    yield from ("Steps a second if there were nothing but collection, or nothing but updates:", "")
    parts = ("collection", "update")
    head = [label, *(f"{part}, {labelled(name)}" for part in parts for name in names)]
    rates = [(f"{part}_steps_per_second", name) for part in parts for name in names]
    rows = [[what(result), *(count(result[part].get(name)) for part, name in rates)] for result in results]
    yield from table(head, rows)


def envs_tables(found: Result) -> Iterator[str]:
    """Speed, its parts, and memory."""
    results = found["results"]
    envs = lambda result: f"{result['job']['num_envs']:,}"  # noqa: E731
    yield from speeds("envs", envs, results)
    yield from parts_of_a_step("envs", envs, results)
    names = [name for name in names_of(results) if name not in CEILINGS and ", " not in name]
    yield from ("Memory of the whole process, in MB, and what an env adds, rollout and all:", "")
    rows = [[envs(r), *(count(r["resident_bytes"].get(name, 0) / 1e6) for name in names)] for r in results]
    alike = [r for r in results if r["job"]["num_steps"] == 128]
    if len(alike) > 1:
        first, last = alike[0], alike[-1]
        more = last["job"]["num_envs"] - first["job"]["num_envs"]
        grown = [(last["resident_bytes"][n] - first["resident_bytes"][n]) / more / 1e3 for n in names]
        span = f"kB an env ({envs(first)} to {envs(last)})"
        rows.append([span, *(f"{value:,.0f}" for value in grown)])
    yield from table(["envs", *(labelled(name) for name in names)], rows)


def library_tables(found: Result) -> Iterator[str]:
    def case(result: Result) -> str:
        job = result["job"]
        return f"{job['algo'].upper()}" + (f", {job['num_envs']} envs" if job["num_envs"] > 1 else "")

    yield from speeds("algorithm", case, found["results"])


def width_tables(found: Result) -> Iterator[str]:
    width = lambda result: "x".join(map(str, result["job"]["hidden"]))  # noqa: E731
    yield from speeds("network", width, found["results"])
    yield from parts_of_a_step("network", width, found["results"])


def off_policy_tables(found: Result) -> Iterator[str]:
    def case(result: Result) -> str:
        job = result["job"]
        return f"{job['algo'].upper()}, {job['threads']} thread{'s' * (job['threads'] > 1)}"

    yield from speeds("algorithm", case, found["results"])
    yield from parts_of_a_step("algorithm", case, found["results"])


def batch_tables(found: Result) -> Iterator[str]:
    yield from speeds("batch", lambda result: f"{result['job']['batch_size']:,}", found["results"])


def replay_tables(found: Result) -> Iterator[str]:
    """Time and memory by capacity."""
    names = names_of(found["results"])
    head = ["transitions", *(f"{part}, {labelled(name)}" for part in
            ("add, µs", "sample, µs", "bytes a transition") for name in names)]  # fmt: skip
    rows = []
    for result in found["results"]:
        size = result["job"]["buffer_size"]
        times = [
            1e6 / result[f"{part}_steps_per_second"][n] for part in ("collection", "update") for n in names
        ]
        # In a small buffer, what the process happens to take besides outweighs it.
        memory = [result["buffer_bytes"][n] / size if size >= 10**6 else None for n in names]
        rows.append([f"{size:,}", *(count(value) for value in [*times, *memory])])
    yield from table(head, rows)


def threshold_tables(found: Result) -> Iterator[str]:
    """One line a library."""
    rows = [
        [labelled(name), f"{found['seconds'][name]:.2f}",
         f"{min(run['seconds'] for run in runs):.1f} to {max(run['seconds'] for run in runs):.1f}",
         f"{found['solved'][name]} of {len(runs)}",
         "" if name == OURS else f"{found['ratio_of_medians'][name]:.2f} ({interval(found['runs'], name)})"]
        for name, runs in found["runs"].items()
    ]  # fmt: skip
    yield from table(["library", "seconds, median", "all seeds", "solved", "times ours"], rows)


def interval(runs: dict[str, list[Result]], peer: str) -> str:
    """Where the ratio of medians lies for 95 % of the draws of as many seeds from these."""
    import numpy as np

    seconds = np.array([[run["seconds"] for run in runs[name]] for name in (peer, OURS)])
    seeds = np.random.default_rng(0).integers(seconds.shape[1], size=(10_000, seconds.shape[1]))
    theirs, ours = np.median(seconds[:, seeds], axis=-1)
    low, high = np.quantile(theirs / ours, [0.025, 0.975])
    return f"{low:.2f} to {high:.2f}"


def startup_tables(found: Result) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in found["results"] for name in row["seconds"]))
    rows = [[row["what"], *(f"{row['seconds'][n]:.2f}" if n in row["seconds"] else "" for n in names)]
            for row in found["results"]]  # fmt: skip
    yield from table(["seconds", *(labelled(name) for name in names)], rows)


GPU_CASES = {
    "sac": "SAC, HalfCheetah, 8 envs, as many updates as steps",
    "td3": "TD3, HalfCheetah, 8 envs, as many updates as steps",
    "dqn-pong": "DQN, Pong",
    "ppo-pong": "PPO, Pong, 256 games in ALE's threads",
    **{f"ppo-cartpole-{n}": f"PPO, CartPole, {n:,} envs on the GPU" for n in (1024, 4096, 16384, 65536)},
    "ppo-cartpole-65536-tf32": "the same with `precision: tf32`",
}


def gpu_tables(found: Result) -> Iterator[str]:
    """Steps a second, and how soon CartPole is solved."""
    by_case = {result["case"]: result for result in found["results"] if "failed" not in result}
    rows = [
        [what, count(by_case[case]["steps_per_second"])]
        for case, what in GPU_CASES.items()
        if case in by_case
    ]
    yield from table(["training", "steps a second"], rows)
    if "solve" in by_case:
        solved = by_case["solve"]
        yield from (
            f"CartPole is solved after {solved['solved_after_seconds']:.1f} s of training "
            f"({solved['steps']:,} steps of 1,024 envs): an evaluation of 20 episodes in Gymnasium's env "
            f"brings {solved['evaluation']:.0f}.",
            "",
        )


def lines_over(
    key: str, label: str, what: str
) -> Callable[[Result], tuple[str, dict[str, list[tuple[float, float]]], str]]:
    """A plot of steps a second over a number of the job."""

    def lines(found: Result) -> tuple[str, dict[str, list[tuple[float, float]]], str]:
        def place(result: Result) -> float:
            value = result["job"][key]
            return float(value[0] if isinstance(value, list) else value)

        results = found["results"]
        return label, {
            labelled(name): [
                (place(r), r["steps_per_second"][name]) for r in results if name in r["steps_per_second"]
            ]
            for name in names_of(results)
        }, what  # fmt: skip

    return lines


PARTS = (
    Part(
        "libraries",
        "All libraries that install beside this one",
        "Steps a second with everything that a step takes. PPO on CartPole: 128 steps an iteration, 4 "
        "epochs, 4 minibatches, a 64x64 actor and critic, one thread of torch on two cores; all step the "
        "same envs of Python, TorchRL in processes, which is quicker there than its envs in one. The others "
        "as below, one update a step on one thread and one core. Every library takes its own loop, TorchRL "
        "one like those of its documentation, and is compiled as far as it is by itself. d3rlpy is made for "
        "data that is there already and has no PPO. Sample Factory and RLlib ask for older versions of "
        "Gymnasium, and CleanRL is no package of its present scripts.",
        library_tables,
    ),
    Part(
        "ppo-envs",
        "PPO on CartPole, ever more envs",
        "Environment steps a second: 128 steps an iteration (fewer where that would be more than 65,536 over "
        "all envs), 4 epochs, 4 minibatches, a 64x64 actor and critic, one thread of torch on two cores. "
        "*Envs alone* is a plain loop over the envs with random actions, *Gymnasium's vector alone* its "
        "`SyncVectorEnv`: the same envs of Python that all libraries step here, in all the wrappers that "
        "Gymnasium puts around them; this package takes off those that only check. *Native* is Gymnasium's "
        "vectorised CartPole, in which only this package is measured; the ratios leave it out. "
        "*Two learners* are two processes of this package that share out collection and updates, each with "
        "half of the envs.",
        envs_tables,
        lines_over("num_envs", "envs", "Steps a second of PPO over the number of envs"),
    ),
    Part(
        "ppo-width",
        "PPO on CartPole, ever wider networks",
        "The same with 64 envs and two hidden layers of other widths, the wider ones with two threads of "
        "torch. JAX takes both cores in any case.",
        width_tables,
        lines_over("hidden", "width", "Steps a second of PPO over the width of the network"),
    ),
    Part(
        "off-policy",
        "DQN, SAC and TD3, one update a step",
        "Steps a second with everything that a step takes, updates compiled as in any long run; evaluations "
        "and checkpoints are left out. DQN: CartPole, 64x64, batches of 128; SAC and TD3: Pendulum, "
        "256x256, batches of 256. One thread is one core for all libraries, two threads are two. What two "
        "threads gain varies on this virtual machine from one minute to the next; it seems to go with how "
        "near to each other its cores are, which was not recorded.",
        off_policy_tables,
    ),
    Part(
        "off-policy-batch",
        "SAC, other batches",
        "Steps a second on one thread.",
        batch_tables,
        lines_over("batch_size", "batch", "Steps a second of SAC over the batch size"),
    ),
    Part(
        "replay",
        "Replay, ever more transitions",
        "CartPole's shapes. *Add* takes in one step of 64 envs, *sample* draws a batch of 256 (with "
        "priorities: and takes new ones). SBX uses the buffer of Stable-Baselines3.",
        replay_tables,
    ),
    Part(
        "time-to-threshold",
        "PPO on CartPole, time to 475",
        "Seconds from the start of the process until an evaluation of ten episodes brings 475, with the "
        "settings of the preset `ppo/cartpole` in all libraries. Evaluations are as a library makes them: "
        "four envs side by side here, one in the others; *4 at evaluations* has as many as here. The preset "
        "is too short for compiling to pay: its updates are made as they are. In brackets the 95 % interval "
        "of a bootstrap over seeds.",
        threshold_tables,
    ),
    Part(
        "startup",
        "Start-up",
        "Seconds of a process. This package imports torch when it is needed, so that *import* alone costs "
        "little; at the *first training step* of eight envs networks, optimiser and loop are there.",
        startup_tables,
    ),
    Part(
        "gpu",
        "On a GPU",
        "Steps a second with everything included but evaluations and checkpoints, in the second half of a "
        "short run, when all is compiled and captured; each was measured once. PPO on CartPole: 128 steps an "
        "iteration, 4 epochs, 4 minibatches, a 64x64 actor and critic.",
        gpu_tables,
        command="python benchmarks/gpu_training.py",
    ),
)


@dataclass(frozen=True)
class Aim:
    """What a figure should be at least."""

    what: str
    part: str
    least: float
    measure: Callable[[Result], float | None]


def speed_aim(what: str, part: str, least: float, peer: str, *, who: str = OURS, **job: Any) -> Aim:
    """So many times the speed of a peer, by one column that is named beforehand, not by the best of them."""

    def measure(found: Result) -> float | None:
        alike = (r for r in found["results"] if job.items() <= r["job"].items())
        return next((ratio(r, peer, who) for r in alike), None)

    named = "" if who == OURS else f" ({who})"
    return Aim(f"{what}{named}, times {LABELS[peer]}", part, least, measure)


def overhead(ceiling: str) -> Aim:
    """Our collection with 64 envs of Python, of the speed of those envs alone."""

    def measure(found: Result) -> float | None:
        return next(
            (r["collection_steps_per_second"][OURS] / r["steps_per_second"][ceiling]
             for r in found["results"] if r["job"]["num_envs"] == 64 and ceiling in r["steps_per_second"]),
            None,
        )  # fmt: skip

    return Aim(f"PPO collection, 64 envs, of {ceiling}", "ppo-envs", 0.7, measure)


def at_worst(what: str, part: str, least: float, values: Callable[[Result], list[float | None]]) -> Aim:
    """The smallest of several figures, if all of them were measured."""

    def measure(found: Result) -> float | None:
        known = [value for value in values(found) if value is not None]
        return min(known) if known and len(known) == len(values(found)) else None

    return Aim(f"{what}, at its worst", part, least, measure)


def no_slower(what: str, part: str, over_before: Callable[[Result], list[float | None]]) -> Aim:
    """Ours where it has gained least over an older checkout, if that was measured at all points."""

    return at_worst(f"{what}, times *before*", part, 0.95, over_before)


def gains(found: Result) -> list[float | None]:
    """How many times as fast as before, at each point."""
    return [ratio(result, BEFORE) for result in found["results"]]


def replay_gains(found: Result) -> list[float | None]:
    """The same of what goes in and of what comes out."""
    tables = [r[f"{part}_steps_per_second"] for r in found["results"] for part in ("collection", "update")]
    return [
        rates[name] / rates[f"{name}, before"] if f"{name}, before" in rates else None
        for rates in tables
        for name in (OURS, f"{OURS}, prioritised")
    ]


def over_libraries(found: Result) -> list[float | None]:
    """How many times as fast as every other library, in every case."""
    rates = ((result, peer) for result in found["results"] for peer in peers_of(result["steps_per_second"]))
    return [ratio(result, peer) for result, peer in rates]


def startup_gains(found: Result) -> list[float | None]:
    """The same of seconds, which should be few; Python alone is the same at all times."""
    rows = [row["seconds"] for row in found["results"] if row["what"] != "python"]
    return [seconds[BEFORE] / seconds[OURS] if BEFORE in seconds else None for seconds in rows]


def threshold_gains(found: Result) -> list[float | None]:
    """The same of the seconds to 475."""
    return [found["ratio_of_medians"].get(BEFORE)]


def gpu_aim(what: str, least: float, case: str, figure: str = "steps_per_second") -> Aim:
    """So many steps a second on the GPU that the aims were set for."""

    def measure(found: Result) -> float | None:
        if not any("H200" in gpu for gpu in found["hardware"]["gpus"]):
            return None
        return next((r.get(figure) for r in found["results"] if r["case"] == case), None)

    return Aim(f"H200: {what}, steps a second", "gpu", least, measure)


def threshold_aim(what: str, peer: str) -> Aim:
    """How many times as long a peer takes; nothing counts while a seed is not solved."""

    def measure(found: Result) -> float | None:
        solved = found["solved"][OURS] == len(found["runs"][OURS])
        ratio: float | None = found["ratio_of_medians"].get(peer)
        return ratio if solved else 0.0

    return Aim(f"time to 475, all seeds solved: {what} to ours", "time-to-threshold", 2.0, measure)


AIMS = (
    at_worst("PPO, DQN, SAC and TD3, times any other library", "libraries", 1.0, over_libraries),
    speed_aim("PPO, 8 envs", "ppo-envs", 1.8, SB3, num_envs=8),
    speed_aim("PPO, 64 envs", "ppo-envs", 3.0, SB3, num_envs=64),
    speed_aim("PPO, 64 envs", "ppo-envs", 3.0, SB3, who=f"{OURS}, native", num_envs=64),
    speed_aim("PPO, 64 envs", "ppo-envs", 3.0, SB3, who=f"{OURS}, pipelined", num_envs=64),
    speed_aim("PPO, 64 envs", "ppo-envs", 3.0, SB3, who=f"{OURS}, two learners", num_envs=64),
    overhead("Gymnasium's vector alone"),
    overhead("envs alone"),
    speed_aim("DQN, 1 thread", "off-policy", 1.8, SB3, algo="dqn", threads=1),
    speed_aim("SAC, 1 thread", "off-policy", 1.4, SB3, algo="sac", threads=1),
    speed_aim("SAC, 1 thread", "off-policy", 1.0, SBX, algo="sac", threads=1),
    speed_aim("SAC, 2 threads", "off-policy", 1.8, SB3, algo="sac", threads=2),
    speed_aim("SAC, 2 threads", "off-policy", 1.8, SB3, who=f"{OURS}, pipelined", algo="sac", threads=2),
    speed_aim("TD3, 1 thread", "off-policy", 1.8, SB3, algo="td3", threads=1),
    speed_aim("TD3, 1 thread", "off-policy", 1.0, SBX, algo="td3", threads=1),
    speed_aim("TD3, 2 threads", "off-policy", 2.2, SB3, algo="td3", threads=2),
    speed_aim("TD3, 2 threads", "off-policy", 2.2, SB3, who=f"{OURS}, pipelined", algo="td3", threads=2),
    no_slower("PPO, any number of envs", "ppo-envs", gains),
    no_slower("PPO, any width", "ppo-width", gains),
    no_slower("DQN, SAC and TD3", "off-policy", gains),
    no_slower("SAC, any batch", "off-policy-batch", gains),
    no_slower("replay, any size", "replay", replay_gains),
    no_slower("time to 475", "time-to-threshold", threshold_gains),
    no_slower("start-up", "startup", startup_gains),
    gpu_aim("SAC, HalfCheetah", 1_000, "sac"),
    gpu_aim("TD3, HalfCheetah", 1_500, "td3"),
    gpu_aim("PPO, CartPole, 4,096 envs", 10e6, "ppo-cartpole-4096"),
    gpu_aim("PPO, CartPole, 65,536 envs", 40e6, "ppo-cartpole-65536"),
    gpu_aim("PPO, CartPole, 65,536 envs, tf32", 40e6, "ppo-cartpole-65536-tf32"),
    gpu_aim("PPO, Pong", 12_000, "ppo-pong"),
    threshold_aim("Stable-Baselines3's", SB3),
    threshold_aim("Stable-Baselines3's with 4 envs at evaluations", ALIKE),
)


def aims(results: dict[str, Result | None]) -> Iterator[str]:
    """What is wanted and what is."""
    yield from ("### Aims", "")
    rows = []
    for aim in AIMS:
        found = results[aim.part]
        value = None if found is None else aim.measure(found)
        verdict = "not measured" if value is None else "reached" if value >= aim.least else "**short**"
        least = f"{aim.least:,.0f}" if aim.least >= 10 else f"{aim.least:g}"
        rows.append([aim.what, least, count(value), verdict])
    yield from table(["what", "at least", "measured", ""], rows)


def generated(results: dict[str, Result | None]) -> str:
    """Aims first, then part by part."""
    lines = list(aims(results))
    for part in PARTS:
        lines += part.section(results[part.name])
    return "\n".join(lines).rstrip()


def render(page: str, results: dict[str, Result | None] | None = None) -> str:
    """The page with its generated part replaced."""
    found = {part.name: part.result for part in PARTS} if results is None else results
    return with_generated(page, generated(found))


def summary(results: dict[str, Result]) -> str:
    """What the README says of speed: one line an algorithm, and how soon there is something to show."""

    def rates(part: str, who: str = OURS, **job: Any) -> dict[str, float]:
        alike = (r for r in results.get(part, {}).get("results", ()) if job.items() <= r["job"].items())
        found = dict(next(alike, {}).get("steps_per_second", {}))
        return {**found, OURS: found.get(who)}

    native = f"{OURS}, native"
    rows = {
        "PPO, 8 envs, steps a second": rates("ppo-envs", num_envs=8),
        "PPO, 64 envs, the same envs for all, steps a second": rates("ppo-envs", num_envs=64),
        "PPO, 64 envs, Gymnasium's vectorised CartPole here, steps a second": rates(
            "ppo-envs", native, num_envs=64
        ),
        **{
            f"{algo.upper()}, steps a second": rates("off-policy", algo=algo, threads=1)
            for algo in ("dqn", "sac", "td3")
        },
        "PPO, seconds to a solved CartPole": results.get("time-to-threshold", {}).get("seconds", {}),
    }
    names = (OURS, SB3, SBX)
    found = [[what, *(amount(by.get(name)) for name in names)] for what, by in rows.items()]
    return "\n".join(table(["", *map(labelled, names)], found)).rstrip()


def amount(value: float | None) -> str:
    """A rate, or a few seconds."""
    return "" if value is None else f"{value:,.{0 if value >= 10 else 1}f}"


def render_readme(page: str) -> str:
    """The README with its generated part replaced."""
    return with_generated(page, summary({part.name: found for part in PARTS if (found := part.result)}))


def draw(part: Part, result: Result, path: Path) -> None:
    """Both axes are logarithmic: equal distances are equal factors."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    assert part.plot is not None
    label, lines, _ = part.plot(result)
    with pyplot.rc_context({"svg.hashsalt": part.name, "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
        for name, points in lines.items():
            style: dict[str, Any] = {"marker": "o", "markersize": 4, "color": COLOURS.get(name)}
            if name in CEILINGS:
                style = {"linestyle": (":", "--", "-.")[CEILINGS.index(name)], "color": "0.6"}
            axes.loglog(*zip(*points, strict=True), label=name, **style)
        ticks = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_minor_formatter(
            lambda value, _: f"{value:,.0f}" if f"{value:.0e}"[0] in "25" else ""  # all would be too many
        )
        axes.set_xlabel(label)
        axes.set_ylabel("steps a second")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def main() -> int:
    """The pages, and unless they are only looked at the plots."""
    status = bring_up_to_date(PAGE, render) | bring_up_to_date(README, render_readme)
    if "--check" not in sys.argv[1:]:
        for part in PARTS:
            if part.plot is not None and (result := part.result) is not None:
                draw(part, result, PLOTS / f"performance-{part.name}.svg")
    return status


if __name__ == "__main__":
    sys.exit(main())
