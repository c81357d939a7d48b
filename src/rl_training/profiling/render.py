"""A profile as text: tables, a bar, and one sentence that says what to do."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate

from rl_training.profiling.candidates import EFFECTS, WORTHWHILE
from rl_training.profiling.compare import SLOW_START, Comparison, Trial
from rl_training.profiling.profile import Profile

WIDTH = 78
"""Columns: no line is longer, if none of its words is."""
NOTHING = "nothing found that is faster"
STOPPED = "stopped before everything was tried: nothing is suggested"
RATIO = """\
ratio: taken in each turn, then the median of the turns, as are both speeds
whole run: total_timesteps with its start, without evaluations and checkpoints"""


def as_text(profile: Profile, command: Sequence[str] = ()) -> str:
    """Everything that was measured. `command` are the words of the `train` command that was profiled."""
    blocks = [
        _head(profile),
        _parts(profile),
        [bar(profile.shares)],
        _limit(profile),
        _ceilings(profile),
        _trials(profile),
        _suggestions(profile, command),
        _tuned(profile),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def bar(shares: Mapping[str, float], width: int = WIDTH) -> str:
    """One line in which every part is as long as its share; names stand where there is room for them."""
    ends = [round(end * (width - 1)) for end in accumulate(shares.values(), initial=0.0)]
    line = "|"
    for (part, share), begin, end in zip(shares.items(), ends[:-1], ends[1:], strict=True):
        room = end - begin - 1  # the last one of its places is the border
        label = next((text for text in (f" {part} {share:.0%} ", part, part[0]) if len(text) <= room), "")
        line += label.center(room, "=") + "|" if room >= 0 else ""
    return line


def _head(profile: Profile) -> list[str]:
    config, settings = profile.config, profile.settings()
    rest = [f"{key}: {value}" for key, value in settings.items()]
    return [f"{config.algo} on {config.env_id}", *(f"  {line}" for line in _listed(rest, WIDTH - 2))]


def _parts(profile: Profile) -> list[str]:
    speed, shares = profile.speed, profile.shares
    rows = [("part", "seconds", "share", "µs/step")]
    for part, seconds in profile.parts.items():
        if profile.sampler and not seconds:  # what the sampler does, the learner does not
            continue
        rows.append((part, f"{seconds:.2f}", f"{shares[part]:.1%}", f"{seconds / speed.steps * 1e6:,.1f}"))
    each = 1e6 * speed.seconds / speed.steps
    rows.append(("all", f"{speed.seconds:.2f}", "100.0%", f"{each:,.1f}"))
    done = f"{speed.steps:,} steps and {profile.updates:,} updates: {speed.per_second:,.0f} steps/s"
    if profile.steps_per_second != speed.per_second:
        done += f"; {profile.steps_per_second:,.0f} when not watched"
    return [*_table(rows), *_wrapped(done)]


def _limit(profile: Profile) -> list[str]:
    longest, limit = profile.longest, profile.limit
    share = f"{profile.shares[longest]:.0%} of the time"
    lines = [f"limit: {limit}, {share if limit == longest else f'for which the learner waits {share}'}"]
    if profile.sampler:
        parts = ", ".join(f"{part} {share:.0%}" for part, share in profile.sampler_shares.items())
        lines.append(f"sampler: {parts} of its own time")
    return [part for line in lines for part in _wrapped(line)]


def _ceilings(profile: Profile) -> list[str]:
    envs, updates = profile.env_steps_per_second, profile.update_speed
    rows, lines = [("ceiling", "steps/s", "reached")], []

    def add(name: str, ceiling: float) -> None:
        rows.append((name, f"{ceiling:,.0f}", f"{profile.steps_per_second / ceiling:.0%}"))

    if envs is not None:
        add("envs alone, random actions", envs)
    if updates is not None:
        add("updates alone, one batch", updates.steps_per_second)
        each = f"one for {updates.steps_per_update:,.1f} steps"
        lines.append(f"  {updates.updates_per_second:,.0f} updates/s, {each}")
    for name, problem in profile.problems.items():
        lines += _wrapped(f"{name} alone: could not be measured ({_shortened(problem)})")
    return [*(_table(rows) if rows[1:] else []), *lines]


def _trials(profile: Profile) -> list[str]:
    tried = [trial for trial in profile.trials if trial.comparison is not None]
    rows = [("tried", "steps/s", "present", "ratio", "")]
    for trial in tried:
        assert trial.comparison is not None
        found = trial.comparison
        rows.append(
            (
                trial.candidate.name,
                f"{found.speed:,.0f}",
                f"{found.present_speed:,.0f}",
                f"{found.ratio:.2f}",
                EFFECTS[trial.candidate.effect],
            )
        )
    lines = []
    if tried:
        head, *table = _table(rows, left=(0, 4))
        lines.append(head)
        for line, trial in zip(table, tried, strict=True):
            lines.append(line)
            for note in _notes(trial, profile):
                lines += _wrapped(f"  {note}", "    ")
        lines.append(RATIO)
    if skipped := [trial.candidate.name for trial in profile.trials if trial.skipped]:
        lines += _listed(["not tried, too little to gain: " + skipped[0], *skipped[1:]])
    for trial in profile.trials:
        if trial.error:
            lines += _wrapped(f"not possible: {trial.candidate.name} ({_shortened(trial.error)})")
    return lines


def _notes(trial: Trial, profile: Profile) -> list[str]:
    """What else there is to say of a row: what it changes, its start, why it was not taken."""
    found, best = trial.comparison, profile.best(changes_data=trial.candidate.effect == "data")
    assert found is not None
    notes = [trial.candidate.note, _start(found)]
    if pays := _pays_later(found):
        notes.append(f"pays from {pays:,} steps on, and the run has {found.total_timesteps:,}")
    if trial.first is not None:
        notes.append(f"measured twice, this is the second time; the first ratio was {trial.first.ratio:.2f}")
    if found.ratio >= WORTHWHILE and trial is not best:
        notes.append(_why_not(trial, found, best))
    return [note for note in notes if note]


def _why_not(trial: Trial, found: Comparison, best: Trial | None) -> str:
    """Why something is not taken although its steps were faster."""
    if trial.is_noise:
        return f"noise: the parts that it helps leave room for {trial.at_most:.2f} at most"
    if trial.is_faster:
        return "" if best is None else f"faster, but the whole run less so than with {best.candidate.name}"
    if found.gain >= WORTHWHILE:
        return "in too few turns"
    return "" if _pays_later(found) else f"with its start the whole run is {found.gain:.2f} times as fast"


def _start(found: Comparison) -> str:
    """How long a start takes, if that is long or the run too short for what is faster after it."""
    start, first = f"{found.start_up_s:.3g} s", found.first_start_up_s
    if first is not None:
        return f"{first:.3g} s to start the first time, {start} from then on"
    slow = found.start_up_s >= SLOW_START or _pays_later(found)
    return f"{start} to start" if slow else ""


def _pays_later(found: Comparison) -> int:
    """The steps from which on faster ones repay their start, if the run has fewer; else 0."""
    pays = found.pays_from or 0
    return pays if found.ratio >= WORTHWHILE and pays > found.total_timesteps else 0


def _suggestions(profile: Profile, command: Sequence[str]) -> list[str]:
    if not profile.complete:
        return [STOPPED]
    lines = []
    for changes_data in (False, True):
        best = profile.best(changes_data=changes_data)
        if best is None:
            continue
        what = "but it changes what is learnt from" if changes_data else EFFECTS[best.candidate.effect]
        lines += _wrapped(
            f"suggestion: {best.candidate.name} makes the whole run {best.gain:.2f} times as fast, {what}"
        )
        if command:
            lines += as_command([*command, *best.candidate.option.split()])
    return lines or [NOTHING]


def _tuned(profile: Profile) -> list[str]:
    tuned = profile.tuned
    if tuned is None:
        return []
    if tuned.comparison is None:
        return ["autotune: the present settings are kept"]
    names = ", ".join(candidate.name for candidate in tuned.chosen)
    return _wrapped(f"autotune: {names}: the whole run {tuned.comparison.gain:.2f} times as fast")


def _wrapped(text: str, indent: str = "  ", width: int = WIDTH) -> list[str]:
    """Lines of words; all but the first are indented."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _listed(items: Sequence[str], width: int = WIDTH) -> list[str]:
    """Lines that end at commas."""
    lines = [""]
    for number, item in enumerate(items, 1):
        word = item if number == len(items) else f"{item},"
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def as_command(words: Sequence[str]) -> list[str]:
    """A command over as many lines as it needs, which a shell reads as one."""
    lines = [" "]
    for word in map(shlex.quote, words):
        if lines[-1].strip() and len(lines[-1]) + 1 + len(word) > WIDTH - 2:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return lines


def _shortened(text: str) -> str:
    """An error as one sentence, more or less."""
    return textwrap.shorten(text, 200, placeholder=" …")


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Aligned columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
