"""The process of one contender: `contend.py MODULE:FUNCTION JOB`, started by `turns`."""

from __future__ import annotations

import importlib
import json
import os
import sys

from pace import Job, Meter


def main() -> None:
    """Keep to the cores that the job has, then train for as long as somebody asks."""
    call, given = sys.argv[1:]
    description = json.loads(given)
    job = Job(**{**description, "hidden": tuple(description["hidden"])})
    cores = sorted(os.sched_getaffinity(0))[-job.cores :]
    os.sched_setaffinity(0, cores)
    meter = Meter(job.warm_up)
    module, _, function = call.partition(":")
    getattr(importlib.import_module(module), function)(job, meter)


if __name__ == "__main__":
    main()
