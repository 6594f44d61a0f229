"""The two modes of installation, standalone and beside Volcano: which programs and webhooks each of them has."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.admission.webhooks import WEBHOOKS
from capcard_sched.cli.admission import admission
from capcard_sched.daemon.admission.options import AdmissionOptions
from tests.manifests.documents import MANIFESTS, Manifest, kustomized, options_of

MODES = ("standalone", "beside-volcano")


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def objects(mode: str, kubectl: Path) -> list[Manifest]:
    return kustomized(kubectl, MANIFESTS if mode == "standalone" else MANIFESTS / mode)


def of_kind(objects: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in objects if manifest["kind"] in kinds]


def webhooks(objects: list[Manifest]) -> list[Manifest]:
    found = of_kind(objects, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return [hook for manifest in found for hook in manifest["webhooks"]]


def flags(objects: list[Manifest]) -> AdmissionOptions:
    (deployment,) = (each for each in of_kind(objects, "Deployment") if each["metadata"]["name"].endswith("-admission"))
    options: AdmissionOptions = options_of(deployment, admission)
    return options


def test_the_programs_of_each_mode(mode: str, objects: list[Manifest]) -> None:
    names = {manifest["metadata"]["name"] for manifest in of_kind(objects, "Deployment")}
    standalone = mode == "standalone"
    assert names == {"capcard-sched", "capcard-sched-admission", *(["capcard-sched-controllers"] if standalone else [])}
    assert bool(of_kind(objects, "CustomResourceDefinition")) == standalone


def test_beside_volcano_only_card_checks_are_registered_and_all_fail_open(mode: str, objects: list[Manifest]) -> None:
    paths = {hook["clientConfig"]["service"]["path"] for hook in webhooks(objects)}
    cards = {"/pods/validate", "/workloads/validate"}
    assert paths == (set(WEBHOOKS) - {"/pods/mutate"} if mode == "standalone" else cards)
    for hook in webhooks(objects):
        if hook["clientConfig"]["service"]["path"] in cards:
            assert hook["failurePolicy"] == "Ignore"
            assert hook["matchConditions"], "pods of other schedulers never reach the server"


def test_every_webhook_has_a_path_that_the_server_serves_and_a_configuration_that_gets_its_authority(
    objects: list[Manifest],
) -> None:
    options = flags(objects)
    assert options.problems() == []
    service = {(options.webhook_service_name, options.webhook_namespace)}
    for hook in webhooks(objects):
        target = hook["clientConfig"]["service"]
        assert target["path"] in options.paths
        assert {(target["name"], target["namespace"])} == service
        assert hook["sideEffects"] == "None"
        assert hook["admissionReviewVersions"] == ["v1"]
    configurations = of_kind(objects, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    assert {manifest["metadata"]["name"] for manifest in configurations} == set(options.configurations)
    roles = (
        each
        for each in of_kind(objects, "ClusterRole")
        if each["metadata"]["name"] == "capcard-sched-admission-certificates"
    )
    named = {name for role in roles for rule in role["rules"] for name in rule.get("resourceNames", ())}
    assert set(options.configurations) <= named


def test_every_pod_of_a_deployment_has_its_account_service_and_network_policy(objects: list[Manifest]) -> None:
    accounts = {manifest["metadata"]["name"] for manifest in of_kind(objects, "ServiceAccount")}
    services = [manifest["spec"]["selector"] for manifest in of_kind(objects, "Service")]
    policies = [manifest["spec"]["podSelector"]["matchLabels"] for manifest in of_kind(objects, "NetworkPolicy")]
    for deployment in of_kind(objects, "Deployment"):
        template = deployment["spec"]["template"]
        labels = template["metadata"]["labels"].items()
        assert template["spec"]["serviceAccountName"] in accounts
        assert any(selector.items() <= labels for selector in services)
        assert any(selector.items() <= labels for selector in policies)
