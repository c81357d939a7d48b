"""A profile as text: tables, a bar, and one sentence that says what to do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import accumulate

from rl_training.profiling.candidates import EFFECTS, WORTHWHILE
from rl_training.profiling.compare import Comparison, Trial
from rl_training.profiling.profile import Profile

WIDTH = 78
SLOW_START = 3.0
"""Seconds to full speed from which on they are mentioned."""
NOTHING = "nothing found that is faster"


def as_text(profile: Profile, command: Sequence[str] = ()) -> str:
    """Everything that was measured. `command` are the words of the `train` command that was profiled."""
    blocks = [
        _head(profile),
        _parts(profile),
        [bar(profile.shares)],
        _limit(profile),
        _ceilings(profile),
        _trials(profile.trials),
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
    rest = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return [f"{config.algo} on {config.env_id} ({rest})"]


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
    return [*_table(rows), done]


def _limit(profile: Profile) -> list[str]:
    longest, limit = profile.longest, profile.limit
    share = f"{profile.shares[longest]:.0%} of the time"
    lines = [f"limit: {limit}, {share if limit == longest else f'for which the learner waits {share}'}"]
    if profile.sampler:
        parts = ", ".join(f"{part} {share:.0%}" for part, share in profile.sampler_shares.items())
        lines.append(f"sampler: {parts} of its own time")
    return lines


def _ceilings(profile: Profile) -> list[str]:
    updates, reached = profile.update_speed, profile.steps_per_second
    learning = f"{updates.updates_per_second:,.0f} updates/s, one for {updates.steps_per_update:,.1f} steps"
    rows = [("ceiling", "steps/s", "reached", "")]
    for name, ceiling, remark in (
        ("envs alone, random actions", profile.env_steps_per_second, ""),
        ("updates alone, one batch", updates.steps_per_second, learning),
    ):
        rows.append((name, f"{ceiling:,.0f}", f"{reached / ceiling:.0%}", remark))
    return _table(rows, left=(0, 3))


def _trials(trials: Sequence[Trial]) -> list[str]:
    tried = [trial for trial in trials if trial.comparison is not None]
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
                _remark(trial),
            )
        )
    skipped = [trial.candidate.name for trial in trials if trial.skipped]
    rest = [f"not tried, too little to gain: {', '.join(skipped)}"] if skipped else []
    return [*(_table(rows, left=(0, 4)) if tried else []), *rest]


def _remark(trial: Trial) -> str:
    candidate, found = trial.candidate, trial.comparison
    words = [EFFECTS[candidate.effect]]
    if candidate.note:
        words.append(f"({candidate.note})")
    if found is not None:
        words += _start(found)
    return " ".join(words)


def _start(found: Comparison) -> list[str]:
    """How long a start takes, if that is long or the run too short for what is faster after it."""
    pays = found.pays_from or 0
    later = found.ratio >= WORTHWHILE and pays > found.total_timesteps
    if not later and found.start_up_s < SLOW_START:
        return []
    return [f"[{found.start_up_s:.3g} s to start{f', pays from {pays:,} steps on' if later else ''}]"]


def _suggestions(profile: Profile, command: Sequence[str]) -> list[str]:
    lines = []
    for changes_data in (False, True):
        best = profile.best(changes_data=changes_data)
        if best is None:
            continue
        what = "but it changes what is learnt from" if changes_data else EFFECTS[best.candidate.effect]
        lines.append(
            f"suggestion: {best.candidate.name} makes the whole run {best.gain:.2f} times as fast, {what}"
        )
        if command:
            lines.append(f"  {shlex.join(command)} {best.candidate.option}")
    return lines or [NOTHING]


def _tuned(profile: Profile) -> list[str]:
    tuned = profile.tuned
    if tuned is None:
        return []
    if tuned.comparison is None:
        return ["autotune: the present settings are kept"]
    names = ", ".join(candidate.name for candidate in tuned.chosen)
    return [f"autotune: {names}: the whole run {tuned.comparison.gain:.2f} times as fast"]


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
