"""Objects of dynamic resource allocation that files may not have: an API server rejects them as well."""

from __future__ import annotations

import pytest

from tests.controlplane.cluster import Cluster
from tests.unit.validation.device_objects import BAD, GOOD

pytestmark = pytest.mark.timeout(600)


async def test_an_api_server_rejects_what_files_may_not_have(cluster: Cluster) -> None:
    """Except those that the rows mark: it stores them."""
    answers = {row.id: await cluster.rejection(row.object) for row in (*BAD, *GOOD)}
    rejected = {name for name, answer in answers.items() if answer is not None}
    assert {answers[name].status for name in rejected} <= {400, 422}  # type: ignore[union-attr]
    assert rejected == {row.id for row in BAD if not row.served}
