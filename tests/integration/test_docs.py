"""The documentation is true: its commands and examples run, its tables match the code, its links resolve."""

from __future__ import annotations

import functools
import importlib
import io
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import rl_training
from rl_training import execution, registry
from rl_training.cli import COMMANDS, main
from rl_training.cli.options import config_options
from rl_training.cli.parser import Parser
from rl_training.cli.zoo import SUBCOMMANDS
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import load_config
from rl_training.policies import encoder_registry
from rl_training.runtime.callbacks import Callback, StepBudget
from rl_training.zoo import runner

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]
BLOCK = re.compile(
    r"(?P<mark><!-- (?:not run|output|excerpt) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
STEPS = 256
CHILD = [sys.executable, str(ROOT / "tests" / "unit" / "zoo" / "fake_axiomrl.py")]
"""What the runner starts here: a stand-in that needs no torch. The runner itself is tested with both."""


@dataclass(frozen=True)
class Block:
    """A fenced block and the remark before it."""

    kind: str
    text: str
    mark: str

    @property
    def file_name(self) -> str | None:
        """The file this block is, if its first line says so."""
        match = re.match(r"# ([\w-]+\.(?:py|yaml))\n", self.text)
        return match[1] if match else None


def blocks(page: Path) -> list[Block]:
    return [
        Block(m["kind"], m["text"], (m["mark"] or "").strip("<!->\n "))
        for m in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def commands(block: Block) -> list[list[str]]:
    """Every `axiomrl` call of a shell block; a loop is gone through once."""
    text = block.text.replace("\\\n", " ")
    found = re.findall(r"^ *axiomrl (.*)$", text, re.MULTILINE)
    return [shlex.split(call.replace("$seed", "1"), comments=True) for call in found]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


STANDARD = execution.standard_callbacks


def with_budget(config: TrainConfig) -> list[Callback]:
    return [*STANDARD(config), StepBudget(STEPS)]


@pytest.fixture(autouse=True)
def _reduced_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run as they are written, but every run ends after a few steps."""
    monkeypatch.setattr(execution, "standard_callbacks", with_budget)
    monkeypatch.setattr(runner, "CHILD", CHILD)
    monkeypatch.setenv("PYTHONPATH", str(Path(rl_training.__file__).parents[1]))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAKE_LIFT", "470")  # scores that lie in the band of the pages' suite


@pytest.fixture(autouse=True)
def _leave_no_names(tmp_path: Path) -> Iterator[None]:
    """Take back what the examples import and register."""
    yield
    for name, module in list(sys.modules.items()):
        if tmp_path in Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[name]
            _forget(registry._ALGORITHMS, lambda entry, home=name: entry.cls.__module__ == home)
            _forget(encoder_registry._REGISTERED, lambda cls, home=name: cls.__module__ == home)
            _forget(gymnasium.registry, lambda spec, home=name: str(spec.entry_point).startswith(f"{home}:"))


def _forget(names: dict[str, Any], is_of_example: Callable[[Any], bool]) -> None:
    for name in [name for name, value in names.items() if is_of_example(value)]:
        del names[name]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that every page gets a copy of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("small"))
        patch.setattr(sys, "argv", ["axiomrl"])
        patch.setattr(execution, "standard_callbacks", with_budget)
        run_dir = rl_training.train(preset="ppo/cartpole", logging={"every_steps": 128}).run_dir
        return Path(run_dir).resolve()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_run: Path) -> Path:
    """A working directory in which `runs/RUN` is a run and the files of the examples can be made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["axiomrl"])
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(small_run, tmp_path / "runs" / "RUN")
    return tmp_path


def call(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; its exit code and everything it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        code = main(arguments)
    return code, printed.getvalue()


SEEN: set[tuple[str, ...]] = set()


def is_seen(arguments: list[str]) -> bool:
    """Has another page shown the same training? What depends on files of the page is always run."""
    if arguments[0] != "train" or {"--config", "--import", "--seeds"} & set(arguments):
        return False
    before = tuple(arguments) in SEEN
    SEEN.add(tuple(arguments))
    return before


def require_sound(arguments: list[str]) -> None:
    """A command that would take too long here: it exists, its options do, and its configuration is valid."""
    unknown = [o for o in arguments if o.startswith("--") and o.partition("=")[0] not in every_option()]
    assert unknown == [], shlex.join(arguments)
    if arguments[0] == "train":
        code, output = call(["config", *arguments[1:]])
        if code:
            skip_without_extra(output)
    else:
        words = 2 if arguments[0] == "zoo" else 1
        code, output = call([*arguments[:words], "--help"])
    assert code == 0, f"axiomrl {shlex.join(arguments)}\n{output}"


@functools.cache
def every_option() -> frozenset[str]:
    """The options of every command, of every algorithm's configuration and of the benchmarks."""
    known: set[str] = {"--help", "--version"}
    for script in (ROOT / "benchmarks").glob("*.py"):
        known |= set(re.findall(r'"(--[a-z][\w-]*)"', script.read_text(encoding="utf-8")))
    for name, (module, text) in {**COMMANDS, **SUBCOMMANDS}.items():
        parser = Parser(name, text)
        importlib.import_module(f"rl_training.cli.{module}").add_arguments(parser)
        known |= set(parser.option_names())
    for entry in registry.algorithms().values():
        names = [option.name for option in config_options(entry).values()]
        known |= {*names, *(name.replace("--", "--no-", 1) for name in names)}
    return frozenset(known)


def skip_without_extra(output: str) -> None:
    if missing := re.search(r'pip install "axiomrl\[(\w+)\]"', output):
        pytest.skip(f"needs the extra {missing[1]}")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.kind in ("bash", "python") for b in blocks(p))], ids=name_of
)
def test_commands_and_examples_run(page: Path, workplace: Path) -> None:
    parts = blocks(page)
    for block in parts:
        if block.file_name is not None:
            (workplace / block.file_name).write_text(block.text, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code, output = 0, ""
    for i, block in enumerate(parts):
        shows_output = i + 1 < len(parts) and parts[i + 1].mark == "output"
        is_shown = i + 1 < len(parts) and parts[i + 1].mark in ("output", "excerpt")
        if block.kind == "bash":
            for arguments in commands(block):
                if block.mark == "not run":
                    require_sound(arguments)
                    continue
                if is_seen(arguments) and not is_shown:
                    continue
                code, output = call(arguments)
                if code:
                    skip_without_extra(output)
                assert code == (2 if shows_output else 0), (
                    f"{page.name}: axiomrl {shlex.join(arguments)}\n{output}"
                )
        elif block.mark == "output":
            assert output == block.text
        elif block.mark == "excerpt":
            assert [line for line in block.text.splitlines() if line not in ("…", *output.splitlines())] == []
        elif block.kind == "python" and block.file_name is None and block.mark != "not run":
            exec(compile(block.text, f"{page.name}, block {i}", "exec"), namespace)


OTHER_PROGRAMS = ("for", "done", "tensorboard", ".venv/bin/pre-commit")


def test_every_line_of_a_shell_block_is_one_that_is_checked() -> None:
    """A misspelt program would otherwise pass unseen; make and pip are not run, but their targets exist."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for page in PAGES:
        for block in blocks(page):
            lines = block.text.replace("\\\n", " ").splitlines()
            if block.kind != "bash":
                shown = [line for line in lines if re.match(r" *\$? *axiomrl(-zoo)? ", line)]
                assert not shown or block.mark, f"{page.name}: a command outside of a bash block: {shown[0]}"
                continue
            for words in filter(None, (shlex.split(line, comments=True) for line in lines)):
                match words:
                    case ["make", *wanted]:
                        assert set(wanted) <= set(targets), f"{page.name}: {shlex.join(words)}"
                    case ["pip", "install", what]:
                        extras = re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*)\]", what)))
                        assert set(extras) <= set(project["optional-dependencies"]), f"{page.name}: {what}"
                    case ["python", script, *_]:
                        assert (ROOT / script).is_file(), f"{page.name}: {shlex.join(words)}"
                    case _:
                        assert words[0] in ("axiomrl", *OTHER_PROGRAMS), f"{page.name}: {shlex.join(words)}"


def named_in_text(page: Path) -> list[str]:
    """What a page shows as code in its running text, as far as it is ours."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    if page.name == "coming-from.md":  # ours is the last column
        text = "\n".join(line.rstrip("| ").rpartition("|")[2] for line in text.splitlines())
    spans = [span for span in re.findall(r"`([^`\n]+)`", text) if not span.startswith(("mypy", "pytest"))]
    return [span for span in spans if page.name != "scorecard.md" or span.startswith("axiomrl")]


def test_every_command_and_option_named_in_the_text_exists() -> None:
    found = 0
    for page in PAGES:
        for span in named_in_text(page):
            options = re.findall(r"(?<![\w-])--[a-z][\w-]*(?:\.[a-z][\w-]*)*", span)
            unknown = [o for o in options if not o.startswith("--env-kwargs.") and o not in every_option()]
            assert unknown in ([], ["--hyperparams"]), f"{page.name}: {span}"
            if named := re.match(r"axiomrl( zoo)? ([a-z][a-z-]*)", span):
                assert named[2] in (SUBCOMMANDS if named[1] else COMMANDS), f"{page.name}: {span}"
            found += bool(options) + bool(named)
    assert found > 100


def test_every_path_of_the_repository_named_in_the_text_exists() -> None:
    found = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        if page.name == "scorecard.md":
            text = text.partition("## AxiomRL")[2].partition("\n## ")[0]
        for path in re.findall(r"`((?:src|tests|docs|benchmarks|examples|configs)/[\w./-]*\w)/?`", text):
            made = "_build" in path or page.name == "extending.md"  # by a command, or by the reader
            assert made or (ROOT / path).exists(), f"{page.name}: {path}"
            found += 1
    assert found > 30


def test_every_command_is_documented_and_used() -> None:
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    shown = [
        (block.mark, words)
        for page in PAGES
        for block in blocks(page)
        if block.kind == "bash"
        for words in commands(block)
    ]
    assert set(COMMANDS) <= {words[0] for _, words in shown}
    assert set(SUBCOMMANDS) <= {words[1] for mark, words in shown if words[0] == "zoo" and mark != "not run"}
    pairs = [f"zoo {name}" for name in SUBCOMMANDS]
    for command in (*COMMANDS, *pairs):
        head = command.partition(" ")[0]
        section = re.search(rf"^## {head}\n(.*?)(?=^## |\Z)", reference, re.DOTALL | re.MULTILINE)
        assert section, f"docs/cli.md has no section on {head}"
        assert head == command or f"`{command}" in section[1]
        code, text = call([*command.split(), "--help"])
        assert code == 0
        own = re.findall(r"^  (?:-\w(?: \w+)?, )?(--[a-z-]+)", text.partition("\nrun:\n")[0], re.MULTILINE)
        missing = [o for o in own if o != "--help" and o not in section[1]]
        assert not missing, f"docs/cli.md, {command}: {missing}"


def test_config_schema_is_up_to_date() -> None:
    generator = load_generator()
    page = generator.PAGE.read_text(encoding="utf-8")
    assert generator.render(page) == page, "run python docs/generate_config_schema.py"
    described = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    assert all(cells[4].strip() for cells in described)  # no field without a description
    keys = {cells[1].strip(" `") for cells in described}
    assert {
        "seed",
        "env.normalize_obs",
        "network.hidden",
        "hyperparams.num_steps",
        "stopping.patience",
    } <= keys


def test_reliability_figures_are_added_up_and_keep_their_commit() -> None:
    generator = load_generator("generate_reliability")
    marks = load_generator("generated")
    page = f"before\n{marks.BEGIN}\n\n{generator.HEAD}\n| kills | a | 1 |  | 0 | old | then |\n"
    page += f"| kills | b | 2 |  | 0 | old | then |\n\n{marks.END}\nafter\n"
    line = {"test": "kills", "case": "b", "trials": 700, "failures": 0, "kills": 3, "date": "now"}
    rendered = generator.render(page, [{**line, "commit": "x"}, {**line, "commit": "y", "failures": 1}])
    assert rendered == page.replace(
        "| b | 2 |  | 0 | old | then |", "| b | 1,400 | 6 kills | 1 | x, y | now |"
    )


def test_every_figure_of_reliability_has_a_commit_and_a_date() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").partition("<!-- begin")[2]
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for cells in rows:
        commits, date = cells[5].strip(), cells[6].strip()
        assert re.fullmatch(r"[0-9a-f]{7,}[+]?(, [0-9a-f]{7,}[+]?)*", commits), cells
        assert re.fullmatch(r"\d{4}-\d\d-\d\d(, \d{4}-\d\d-\d\d)*", date), cells
        assert cells[4].strip() == "0", cells


def load_generator(name: str = "generate_config_schema") -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")  # where they find what they share
        return importlib.import_module(name)


def test_generated_types_are_readable() -> None:
    from typing import get_type_hints

    from rl_training.core import PPOConfig

    describe = load_generator().describe
    hints = get_type_hints(PPOConfig, include_extras=True)
    assert describe(hints["gamma"]) == "number ≥ 0 and ≤ 1"
    assert describe(hints["target_kl"]) == "number > 0 or null"
    assert describe(hints["clip_coef_schedule"]) == "`constant`, `linear`, `cosine`"
    assert describe(hints["num_steps"]) == "integer > 0"


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo"])
def test_page_lists_every_hyperparameter_and_metric(algo: str, workplace: Path) -> None:
    page = (ROOT / "docs" / "algorithms" / f"{algo}.md").read_text(encoding="utf-8")
    artifacts = (ROOT / "docs" / "run-artifacts.md").read_text(encoding="utf-8")
    fields = registry.algorithm(algo).cls.Hyperparams.__dataclass_fields__
    assert [name for name in fields if f"| `{name}` |" not in page] == []
    entropy = {"ent_coef": 0.01} if "ent_coef" in fields else {}
    result = rl_training.train(preset=f"{algo}/cartpole", hyperparams=entropy)
    names = set(result.metrics) - {"evaluation/return_mean"}
    assert {n for n in names if n.startswith("train/")} >= {
        "train/value_loss",
        *(f"train/{key}" for key in entropy),
    }
    for name in names:
        assert f"`{name}`" in (page if name.startswith("train/") else artifacts), name


def test_metadata_fields_are_documented(workplace: Path) -> None:
    from rl_training.experiment.metadata import read_metadata

    artifacts = (ROOT / "docs" / "run-artifacts.md").read_text(encoding="utf-8")
    section = artifacts.partition("## metadata.json")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(
        read_metadata(workplace / "runs" / "RUN")
    )


def test_checkpoint_components_are_documented(workplace: Path) -> None:
    from rl_training.experiment.checkpoint import read_checkpoint
    from rl_training.experiment.find import find_checkpoint

    artifacts = (ROOT / "docs" / "run-artifacts.md").read_text(encoding="utf-8")
    table = artifacts.partition("| component |")[2].partition("\n\n")[0]
    state = read_checkpoint(find_checkpoint(workplace / "runs" / "RUN")).state
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(state)


@pytest.mark.parametrize("tier", ["core", "experimental", "contrib"])
def test_every_name_of_a_tier_is_listed(tier: str) -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text()
    (listed,) = re.findall(rf"What is in \*\*{tier}\*\*(?: today)?: (.*?)[;.]\s", text, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(importlib.import_module(f"rl_training.{tier}").__all__)


def test_algorithms_are_in_the_table() -> None:
    page = (ROOT / "docs" / "algorithms" / "index.md").read_text(encoding="utf-8")
    for entry in registry.algorithms().values():
        row = rf"\| \[`{entry.id}`\]\(([\w-]+\.md)\) \| {entry.family} \| {', '.join(entry.actions)} \|"
        match = re.search(row, page)
        assert match, f"docs/algorithms/index.md has no row for {entry.id}"
        text = (ROOT / "docs" / "algorithms" / match[1]).read_text(encoding="utf-8")
        assert f"`{entry.id}`" in text  # a family shares a page


def test_presets_page_is_up_to_date() -> None:
    from rl_training.experiment.presets import preset_names

    generator = load_generator("generate_presets")
    page = generator.PAGE.read_text(encoding="utf-8")
    assert generator.render(page) == page, "run python docs/generate_presets.py"
    assert all(f"| `{name}` |" in page for name in preset_names())


def test_the_scorecard_counts_what_there_is() -> None:
    page, benchmarks = (
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("scorecard", "benchmarks")
    )
    assert f"| {len(COMMANDS)} commands," in page
    counted = re.search(r"^Measured: (.*)\.$", benchmarks, re.MULTILINE)  # which is generated
    assert counted is not None
    assert f"- **Results.** {counted[1]} have been measured" in page


def test_performance_page_is_up_to_date_and_hides_nothing() -> None:
    generator = load_generator("generate_performance")
    page, readme = (path.read_text(encoding="utf-8") for path in (generator.PAGE, generator.README))
    assert generator.render(page) == page, "run python docs/generate_performance.py"
    assert generator.render_readme(readme) == readme, "run python docs/generate_performance.py"
    rates = {"axiomrl": 30.0, "axiomrl, native": 40.0, "stable-baselines3": 20.0, "envs alone": 90.0}
    rates["Gymnasium's vector alone"] = 80.0
    result = {
        "job": {"num_envs": 64, "num_steps": 128},
        "steps_per_second": rates,
        "collection_steps_per_second": {"axiomrl": 60.0},
        "update_steps_per_second": {"axiomrl": 50.0},
        "resident_bytes": dict.fromkeys(rates, 5e8),
    }
    made = {"versions": {"torch": "2"}, "hardware": {"cpu": "X", "cores": 2, "gpus": []}}
    git = {"commit": "abcdefgh", "is_dirty": True}
    results = dict.fromkeys((part.name for part in generator.PARTS), None)
    text = generator.generated({**results, "ppo-envs": {"results": [result], "git": git, **made}})
    assert "| PPO, 64 envs, times Stable-Baselines3 | 3 | 1.50 | **short** |" in text
    assert "| PPO, 64 envs (axiomrl, native), times Stable-Baselines3 | 3 | 2.00 | **short** |" in text
    assert "| PPO collection, 64 envs, of envs alone | 0.7 | 0.67 | **short** |" in text
    assert "| PPO, 8 envs, times Stable-Baselines3 | 1.8 |  | not measured |" in text
    assert "| PPO collection, 64 envs, of Gymnasium's vector alone | 0.7 | 0.75 | reached |" in text
    assert "| 64 | 30 | 40 | 20 | 90 | 80 | 1.50 |" in text
    assert "`abcdefg` with uncommitted changes: torch 2; X, 2 cores." in text
    assert 'Not measured yet: `make bench PARTS="replay"`.' in text


def test_benchmarks_page_is_up_to_date_and_hides_nothing() -> None:
    generator = load_generator("generate_benchmarks")
    page = generator.PAGE.read_text(encoding="utf-8")
    assert generator.render(page) == page, "run python docs/generate_benchmarks.py"
    figure = generator.Figure("Others", 20.0, None, 1_000)
    runs = [{"seed": seed, "return_mean": score} for seed, score in enumerate((9.0, 10.0, 11.0), 1)]
    row = generator.Row("ppo/x", 2_000, (12.0, None), {"runs": runs}, [figure])
    assert list(generator.shortfalls(row)) == [
        "below its band (at least 12)",
        "less than 20 @ 1k (Others), after 2k steps here",
    ]
    assert row.most == pytest.approx(10.0 + 4.30 / 3**0.5, abs=0.01)  # Student's t
    fine = replace(row, band=(5.0, None), figures=[generator.Figure("O", 12.5, None, 2_000)])
    assert list(generator.shortfalls(fine)) == []  # within noise
    rounded = [generator.Figure("O", mean, None, 2_000) for mean in (12.5, 12.6, 13.0)]  # 13 may be 12.5
    assert list(generator.shortfalls(replace(fine, figures=rounded))) == [
        "less than 12.6 @ 2k (O)", "less than 13 @ 2k (O)",
    ]  # fmt: skip
    seeds = replace(fine, band=(9.5, None), figures=[])
    assert list(generator.shortfalls(seeds)) == ["1 of 3 seeds below the band: 9.0 (seed 1)"]


@pytest.mark.parametrize(("scores", "text"), [([10.0], "10.0"), ([10.0, 12.0], "11.0 (10.0 to 12.0)")])
def test_one_seed_has_no_interval(scores: list[float], text: str) -> None:
    runs = [{"seed": seed, "return_mean": score} for seed, score in enumerate(scores)]
    result = {"runs": runs, "episodes": 5, "summary": {}}
    assert load_generator("generate_benchmarks").Row("ppo/x", 2_000, None, result, []).cells()[2] == text


def test_every_shortfall_has_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = load_generator("generate_benchmarks")
    runs = [{"seed": seed, "return_mean": 10.0} for seed in (1, 2)]
    low = generator.Row("ppo/x", 2_000, (12.0, None), {"runs": runs}, [])
    monkeypatch.setattr(generator, "published", lambda: {"causes": {"ppo/x": "It is short."}})
    assert generator.explained([low]) == ["- `ppo/x`, 10.0: below its band (at least 12). It is short."]
    with pytest.raises(SystemExit, match=r"missing: \[\], of nothing: \['ppo/x'\]"):
        generator.explained([replace(low, band=None)])
    monkeypatch.setattr(generator, "published", dict)
    with pytest.raises(SystemExit, match=r"missing: \['ppo/x'\], of nothing: \[\]"):
        generator.explained([low])


def test_layers_of_the_example_resolve_as_the_page_says(workplace: Path) -> None:
    for block in blocks(ROOT / "docs" / "config-schema.md"):
        if block.file_name is not None:
            (workplace / block.file_name).write_text(block.text, encoding="utf-8")
    config = load_config("wider.yaml", seed=3)
    assert (config.num_envs, config.seed, config.network.hidden) == (16, 3, (128, 128))
    assert config.tags == ("wider",)  # a list is replaced
    assert config.evaluation.episodes == 20  # a mapping is merged
    assert config.hyperparams.gae_lambda == 0.8  # from the preset


def test_the_algorithm_of_the_extending_page_is_right_and_learns(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = next(b for b in blocks(ROOT / "docs" / "extending.md") if b.file_name == "vpg.py")
    (workplace / "vpg.py").write_text(source.text, encoding="utf-8")
    vpg = importlib.import_module("vpg")
    one, two = torch.tensor([-0.5, -2.0]), torch.tensor([1.0, 3.0])
    losses = vpg.vpg_loss(one, two, torch.tensor([2.0, -1.0]), torch.tensor([0.0, 1.0]), 0.5)
    assert losses["policy_loss"].item() == pytest.approx(-(-1.0 + 2.0) / 2)
    assert losses["value_loss"].item() == pytest.approx(0.5 * (1.0 + 4.0) / 2)
    assert losses["loss"].item() == pytest.approx(-0.5 + 0.5 * 1.25)

    monkeypatch.setattr(StepBudget, "on_update", lambda *_: None)  # this one is to learn
    agent = vpg.VPG(
        env_id="axiom/Identity-v0", total_timesteps=20_000, gamma=0.0, evaluation={"every_steps": 0}
    )
    optimum = agent.evaluate(num_episodes=1)["lengths"][0]
    before = agent.evaluate(num_episodes=20)["return_mean"]
    after = agent.learn().evaluate(num_episodes=20)["return_mean"]
    assert before < 0.6 * optimum
    assert after > 0.95 * optimum


LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """What headings of a page are linked by, as GitHub and MyST name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for target in LINK.findall(text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []
