"""An example: no pods on nodes under repair, fuller nodes first, pods of a spread job in different racks."""

import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_AMOUNTS, NODE_SPEC, OTHER_NODES, filter, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.refusal import Code


def _labels(nodes, key):
    return np.array([nodes.nodes[row].labels.get(key, "") for row in nodes.rows], dtype=object)


class Racks(Plugin):
    """Filters nodes by the labels `repair` and `rack`."""

    name = "racks"

    def open(self, session):
        self.jobs = session.jobs

    def signature(self, queue, task):
        return task.job.key if task.labels.get("spread") == "racks" else None

    def _is_spread(self, signature):
        return signature.context(self.name) is not None

    @filter(reads=NODE_SPEC)
    def filter_repair(self, signature, nodes, result):
        result.reject(_labels(nodes, "repair") == "yes", Code.UNRESOLVABLE, "node(s) were under repair")

    @filter(reads=OTHER_NODES, when=_is_spread)
    def filter_racks(self, signature, nodes, result):
        tasks = self.jobs[signature.context(self.name)].tasks.values()
        taken = [task.node.labels.get("rack", "") for task in tasks if task.node is not None]
        result.reject(np.isin(_labels(nodes, "rack"), taken), Code.UNSCHEDULABLE, "node(s) were in a rack of the job")

    @score(reads=NODE_AMOUNTS)
    def score_used_cpu(self, signature, nodes):
        return nodes.used[:, 0] / np.maximum(nodes.allocatable[:, 0], 1)
