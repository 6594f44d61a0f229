"""Cards on /metrics."""

from __future__ import annotations

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.manifests import gang, gpu_node, queue
from tests.e2e.card.expectations import elastic, request, short_of, wants
from tests.e2e.card.stage import Scene, eventually

H200, A100, H100 = "NVIDIA-H200", "NVIDIA-A100-80GB", "NVIDIA-H100"
EITHER = f"{A100}|{H100}"


async def _refusals(scene: Scene, hook: str) -> float:
    return await scene.stage.daemon.metric(
        "volcano_capacity_card_refusals_total", queue_name="q", hook=hook, reason="InsufficientScalarQuota"
    )


@pytest.mark.asyncio
async def test_metrics_show_quota_usage_and_nominations_by_queue_and_card(scene: Scene) -> None:
    nodes = [gpu_node("h", H200, 8), gpu_node("a", A100, 4), gpu_node("b", H100, 2)]
    training = gang("training", 2, queue="q", cards=A100, requests=wants())
    training[0]["metadata"]["annotations"][keys.SERVICE_TYPE] = "training"
    quota = queue("q", cards={H200: 3, A100: 2, H100: 4}, capability={"cpu": "8"})
    admitted, refused = await _refusals(scene, "job_enqueueable"), await _refusals(scene, "allocatable")
    await scene.make(nodes, quota, training, elastic("wide", 4, cards=H200, requests=wants()))
    await scene.expect(bound=5, emitted=[short_of("Pod", "wide-*", H200, 1, 4, 3)], phases={"wide": "Running"})
    await scene.make(request("promised", {EITHER: 3}), request("refused", {H200: 4}))
    emitted = [short_of("PodGroup", "refused", H200, 4, 5, 3)]
    await scene.expect(bound=5, emitted=emitted, phases={"promised": "Inqueue", "refused": "Pending"})

    expected = {
        "capacity": {H200: 3, A100: 2, H100: 4},
        "deserved": {H200: 3, A100: 2, H100: 4},
        "allocated": {H200: 3, A100: 2, H100: 0},
        "request": {H200: 4, A100: 2, H100: 0},
        "inqueue": {H200: 0, A100: 0, H100: 0, EITHER: 3},
        "elastic": {H200: 2, A100: 0, H100: 0},
    }
    metric = scene.stage.daemon.metric
    for figure, cards in expected.items():
        name = f"volcano_queue_card_{figure}"
        assert {card: await metric(name, queue_name="q", card=card) for card in cards} == cards, figure
    for figure in ("capacity", "allocated", "request"):
        name = f"volcano_queue_{figure}_scalar_resources"
        thousandths = {card: 1000 * amount for card, amount in expected[figure].items()}
        assert {card: await metric(name, queue_name="q", resource=card) for card in thousandths} == thousandths, figure
    assert {card: await metric("volcano_card_total", card=card) for card in (H200, A100, H100)} == {
        H200: 8,
        A100: 4,
        H100: 2,
    }
    assert await metric("volcano_card_allocated", card=A100, service_type="training") == 2
    assert await metric("volcano_card_allocated", card=H200, service_type="unknown") == 3
    assert await metric("volcano_queue_share", queue_name="q") == 1
    assert await metric("volcano_queue_allocated_milli_cpu", queue_name="q") == 500
    assert await metric("volcano_queue_capacity_milli_cpu", queue_name="q") == 8000
    assert await _refusals(scene, "job_enqueueable") > admitted
    assert await _refusals(scene, "allocatable") > refused


@pytest.mark.asyncio
async def test_series_go_with_their_queue_and_cards(scene: Scene) -> None:
    await scene.make(gpu_node("h", H200, 8), queue("q", cards={H200: 3}), queue("gone", cards={H200: 2}))

    async def series() -> list[str]:
        _, text = await scene.stage.daemon.get("/metrics")
        return [line for line in text.splitlines() if 'queue_name="gone"' in line or f'card="{H200}"' in line]

    await eventually(series, "the queues' series", lambda lines: any('queue_name="gone"' in line for line in lines))
    await scene.cluster.delete("queues", "gone")
    await eventually(series, "the queue to go", lambda lines: not any('queue_name="gone"' in line for line in lines))
    await scene.cluster.delete("nodes", "h")
    await scene.cluster.patch("queues", "q", {"metadata": {"annotations": {keys.CARD_QUOTA: None}}})
    # A series of a card that was once published becomes 0 and is not left out: dashboards would keep the last value.
    await eventually(
        series,
        "the card's series to be 0",
        lambda lines: all(line.endswith(" 0.0") for line in lines) and bool(lines),
    )
