"""Each sentence of `explain` about random clusters holds: the only wrong ones are those of `oracle_known.yaml`.

That file lists, by kind of error, the seeds of the clusters with a wrong sentence. It only shrinks: a sentence that has
become right is removed from it, and a new wrong one fails. `python -m tests.insight.test_oracle SEED` prints a cluster
with the answers and what is wrong with them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec
import pytest
import yaml

from tests.insight.oracle import Case, findings, wrong_sentences
from tests.insight.oracle_clusters import Cluster, minimized, random_cluster
from tests.insight.oracle_runs import run, runs, summary
from tests.insight.oracle_world import simulated

FILE: Final = Path(__file__).with_name("oracle_known.yaml")
#: Kind of error to the seeds of clusters.
KNOWN: Final[dict[str, list[int]]] = yaml.safe_load(FILE.read_text()) or {}
_CHUNK: Final = 25
_SEEDS: Final = 200
_ALL_SEEDS: Final = 2000


def wrong_in(first: int) -> tuple[dict[str, set[int]], dict[tuple[str, int], str]]:
    """Kinds of errors to seeds, and the errors as texts, of one chunk of seeds."""
    kinds: dict[str, set[int]] = defaultdict(set)
    texts = {}
    for seed in range(first, first + _CHUNK):
        for name, wrong in findings(random_cluster(seed), seed):
            kinds[wrong.kind].add(seed)
            texts[wrong.kind, seed] = f"{name}: {wrong.said}\n    {wrong.right}"
    return kinds, texts


def check(first: int) -> None:
    kinds, texts = wrong_in(first)
    known = {
        kind: found for kind, seeds in KNOWN.items() if (found := {s for s in seeds if first <= s < first + _CHUNK})
    }
    more = [
        f"{kind}, seed {seed}: {texts[kind, seed]}"
        for kind, seeds in kinds.items()
        for seed in sorted(seeds - known.get(kind, set()))
    ]
    assert not more, "wrong sentences:\n" + "\n".join(more)
    fixed = {kind: rest for kind, seeds in known.items() if (rest := sorted(seeds - kinds.get(kind, set())))}
    assert not fixed, f"right now; remove them from {FILE.name}: {fixed}"


@pytest.mark.parametrize("first", range(0, _SEEDS, _CHUNK))
def test_each_sentence_holds(first: int) -> None:
    check(first)


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(_SEEDS, _ALL_SEEDS, _CHUNK))
def test_each_sentence_holds_in_many_clusters(first: int) -> None:
    check(first)


def test_a_wrong_sentence_is_found() -> None:
    """The oracle itself: a false headline about a full node, under each checker that it concerns."""
    cluster = Cluster(
        "built-in",
        (
            "node n0 2*NVIDIA-H200 cpu=8 memory=64Gi labels=kubernetes.io/hostname:n0",
            "queue a cards=NVIDIA-H200:1",
            "pod j0 queue=a gpu=2 card=NVIDIA-H200 cpu=1",
        ),
    )
    world = simulated(cluster)
    (job,) = world.waiting()
    found, text = world.answer(job.name)
    assert wrong_sentences(Case(world, job, found, text)) == []
    said = "No node has 2 NVIDIA-H200 free: none is free on 1 node"
    false = msgspec.structs.replace(found, stage="NoNodeFits", summary=said, facts=())
    kinds = {one.kind for one in wrong_sentences(Case(world, job, false, said))}
    assert kinds == {"never unsaid: NoNodeFits", "cause: irrelevant, devices"}


def test_a_job_with_fewer_replicas_than_its_minimum_is_incomplete() -> None:
    """Without admission: the cause that no other job's end removes is the headline, the refusal of enqueue a fact."""
    cluster = random_cluster(3044)
    world = simulated(cluster)
    found, _ = world.answer("job/j3")
    assert found.summary == "The gang is not complete: the tasks of the Job have 2 pods, and minAvailable is 3"
    assert any(fact.startswith("The PodGroup is not admitted: it needs 2 requests.cpu") for fact in found.facts)
    assert findings(cluster, 3044) == []


@pytest.mark.parametrize(
    "seed",
    [
        63,  # an affinity that no node meets, and a node that is full
        1592,  # a gang of which one pod fits, a node of another card and one that its volume excludes
        841,  # a fix whose pods terminate before their nodes are free
        853,  # a node that lacks memory and does not match the selector, and one that is only unreachable
        976,  # a Job that the next session admits, whose pods no quota admits
        1700,  # a ResourceQuota that other vcjobs use up
        497,  # a pod of a Deployment beside a pod that terminates for hours
        89,  # a fix after which another vcjob, whose pods did not exist yet, takes the place of the job
    ],
)
def test_clusters_of_former_faults(seed: int) -> None:
    """All jobs of a cluster, with all checkers."""
    assert run(seed).wrong == ()


def test_a_run_continues_where_its_log_ends(tmp_path: Path) -> None:
    """The results of the log are not computed again, and the summary counts them."""
    log = tmp_path / "log"
    first = list(runs(range(3, 4), log, sampled=True))
    lines = log.read_bytes()
    both = list(runs(range(3, 5), log, sampled=True))
    assert log.read_bytes().startswith(lines)
    assert both[0] == first[0]
    assert [one.seed for one in both] == [3, 4]
    assert summary(both).startswith("2 clusters, 2 answers, ")


def test_a_minimized_cluster_fails_as_well() -> None:
    """Statements that a finding does not need are left out."""
    cluster = random_cluster(3)
    smallest = minimized(cluster, lambda one: any(line.startswith("node n0") for line in one.statements))
    assert [line[:7] for line in smallest.statements] == ["node n0"]
    assert smallest.operations == ()


def main(seed: int) -> None:
    """Print a cluster with its answers and what is wrong with them."""
    write = sys.stdout.write
    cluster = random_cluster(seed)
    write(f"{cluster}\n")
    world = simulated(cluster)
    for job in world.waiting():
        case = Case(world, job, *world.answer(job.name, fix=True))
        write(f"\n{case.text}\n\n")
        for wrong in wrong_sentences(case):
            write(f"WRONG {wrong.kind}: {wrong.said}\n  RIGHT {wrong.right}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
