"""Runs the oracle over a range of seeds, with all checkers about all waiting jobs, and continues where a log ends.

`python -m tests.insight.oracle_runs --seeds 0:2000 --log FILE` writes one line per cluster: seed, conf, number of
answers, CPU seconds, wrong sentences. With the same log it continues. `--sampled` checks what `test_oracle` checks:
one job per cluster, and the checkers with many trials on a share of the clusters.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.insight.oracle import Case, Wrong, findings, wrong_sentences
from tests.insight.oracle_clusters import random_cluster
from tests.insight.oracle_world import simulated

#: Clusters between two lines of progress.
_PACE: Final = 50


class Run(msgspec.Struct, frozen=True):
    """The result of one cluster, a line of the log."""

    seed: int
    conf: str
    #: Checked answers; 0 when no job waits.
    answers: int
    #: CPU seconds, with those of the copies of the process that trials run in.
    cpu: float
    #: Kind of error, and the job with the sentence.
    wrong: tuple[tuple[str, str], ...]


def run(seed: int, *, sampled: bool = False) -> Run:
    """The oracle on the cluster of a seed."""
    began = _cpu_seconds()
    cluster = random_cluster(seed)
    if sampled:
        found = findings(cluster, seed)
        answers = 1
    else:
        world = simulated(cluster)
        waiting = world.waiting()
        answers = len(waiting)
        cases = [Case(world, job, *world.answer(job.name)) for job in waiting]
        found = [(case.job.name, one) for case in cases for one in wrong_sentences(case)]
    wrong = tuple((one.kind, _line(name, one)) for name, one in found)
    return Run(seed, cluster.conf, answers, round(_cpu_seconds() - began, 3), wrong)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _line(name: str, wrong: Wrong) -> str:
    return f"{name}: {wrong.said} | {wrong.right}"


def runs(seeds: Sequence[int], log: Path | None, *, sampled: bool = False) -> Iterator[Run]:
    """Results of the seeds in order: those of the log, and new ones, which are appended to it."""
    known = {}
    if log is not None and log.exists():
        known = {one.seed: one for one in msgspec.json.Decoder(Run).decode_lines(log.read_bytes())}
    for seed in seeds:
        if (result := known.get(seed)) is None:
            result = run(seed, sampled=sampled)
            if log is not None:
                with log.open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
        yield result


def summary(results: Sequence[Run]) -> str:
    """Clusters per scheduler-conf, answers, CPU seconds, and the seeds of each kind of error."""
    confs = Counter(one.conf for one in results)
    bad = Counter(one.conf for one in results if one.wrong)
    cpu = sum(one.cpu for one in results)
    total = f"{len(results)} clusters, {sum(one.answers for one in results)} answers, {cpu:.0f} CPU seconds"
    each = f"{cpu / max(len(results), 1):.2f} per cluster"
    lines = [f"{total} ({each}), {sum(bad.values())} clusters with a wrong sentence"]
    for conf, count in sorted(confs.items()):
        lines.append(f"  {count:5} {conf}: {bad[conf]} with a wrong sentence")
    kinds: dict[str, set[int]] = {}
    for one in results:
        for kind, _ in one.wrong:
            kinds.setdefault(kind, set()).add(one.seed)
    lines += [f"  {kind}: {', '.join(map(str, sorted(seeds)))}" for kind, seeds in sorted(kinds.items())]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each wrong sentence, progress and a summary; 1 if a sentence is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", required=True, help="first and end, `0:2000`")
    parser.add_argument("--log", type=Path, help="file of results; a run with the same file continues")
    parser.add_argument("--sampled", action="store_true", help="one job per cluster, as in `make test`")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end))
    results = []
    for result in runs(seeds, options.log, sampled=options.sampled):
        results.append(result)
        for kind, line in result.wrong:
            sys.stdout.write(f"seed {result.seed} ({result.conf}), {kind}: {line}\n")
        if len(results) % _PACE == 0:
            sys.stderr.write(f"{len(results)} of {len(seeds)} clusters\n")
        sys.stdout.flush()
    sys.stdout.write(summary(results) + "\n")
    return int(any(one.wrong for one in results))


if __name__ == "__main__":
    raise SystemExit(main())
