"""Manifests and chart: accepted by Kubernetes, in step with each other and with Penstock."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from penstock.config import Config, load
from penstock.monitoring.guard import OPEN
from tests.deploy.manifests import (
    CHART,
    KUBERNETES,
    PLAIN,
    Manifest,
    by_kind,
    helm,
    needs_helm,
    plain,
    rendered,
)

VERSIONS = ["1.25.0", KUBERNETES]
DOCUMENTATION = PLAIN.parents[1] / "docs/deployment.md"
EVERYTHING = (
    'image={"repository": "r.example.com/p", "digest": "sha256:%s", "pullSecrets": [{"name": "r"}]}'
    % ("0" * 64),
    'env={"STARTUP_MODE": "streaming_only", "MAX_EXPORT_WORKERS": "8"}',
    'persistence={"storageClass": "fast", "accessModes": ["ReadWriteOncePod"]}',
    'podAnnotations={"a": "b"}',
    'podLabels={"c": "d"}',
    'nodeSelector={"disk": "ssd"}',
    'tolerations=[{"key": "only", "operator": "Exists"}]',
    'affinity={"nodeAffinity": {}}',
    'priorityClassName="high"',
    'extraVolumes=[{"name": "ca", "secret": {"secretName": "ca"}}]',
    'extraVolumeMounts=[{"name": "ca", "mountPath": "/etc/ca", "readOnly": true}]',
    "podDisruptionBudget.maxUnavailable=0",
    'existingSecret="theirs"',
    'serviceMonitor={"enabled": true, "labels": {"release": "prometheus"}}',
)


def validate(manifests: list[Manifest], version: str = KUBERNETES) -> None:
    for manifest in manifests:
        if manifest["kind"] != "ServiceMonitor":  # the operator's own
            kubernetes_validate.validate(manifest, version.rpartition(".")[0], strict=True)


def pod(manifests: list[Manifest]) -> Manifest:
    spec: Manifest = by_kind(manifests)["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def environment(manifests: list[Manifest]) -> dict[str, str]:
    """What the container gets, with the secrets of the example."""
    secret = yaml.safe_load((PLAIN / "secret.example.yaml").read_text())
    given = {each["name"]: each["value"] for each in pod(manifests)["containers"][0]["env"]}
    return {**secret["stringData"], **given}


def in_another_name() -> list[Manifest]:
    return rendered("serviceMonitor.enabled=true", release="shop")


def configured(manifests: list[Manifest], folder: Path) -> Config:
    file = folder / "pipeline.yaml"
    file.write_text(by_kind(manifests)["ConfigMap"]["data"]["pipeline.yaml"])
    return load(file, environment(manifests))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    validate([*plain(), yaml.safe_load((PLAIN / "secret.example.yaml").read_text())], version)


def test_a_wrong_manifest_would_be_noticed() -> None:
    wrong = copy.deepcopy(by_kind(plain())["StatefulSet"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate([wrong])


def test_the_configuration_in_it_is_one_and_its_probes_and_secrets_are_there(tmp_path: Path) -> None:
    manifests = plain()
    config = configured(manifests, tmp_path)
    container = pod(manifests)["containers"][0]
    assert (config.monitoring.host, config.monitoring.token_env) == ("0.0.0.0", "PENSTOCK_TOKEN")
    assert container["ports"][0]["containerPort"] == config.monitoring.port
    probed = {
        container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert probed == {"/health", "/ready"} <= OPEN, "a probe has no token"
    assert container["envFrom"][0]["secretRef"]["name"] == "penstock"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"/var/lib/penstock", "/etc/penstock", "/tmp"}


def test_the_pod_is_nobody_in_a_read_only_root() -> None:
    spec = pod(plain())
    assert spec["securityContext"]["runAsNonRoot"] is True
    security = spec["containers"][0]["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    dockerfile = (PLAIN.parent / "Dockerfile").read_text()
    assert (
        f"USER {spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" in dockerfile
    )


MADE_BY = pytest.mark.parametrize("made", [plain, pytest.param(in_another_name, marks=needs_helm)])


@MADE_BY
def test_a_correction_replaces_a_pod_that_is_not_ready(made: Callable[[], list[Manifest]]) -> None:
    assert by_kind(made())["StatefulSet"]["spec"]["podManagementPolicy"] == "Parallel"


@MADE_BY
def test_prometheus_has_the_job_that_the_alerts_ask_for(made: Callable[[], list[Manifest]]) -> None:
    manifests = by_kind(made())
    label = manifests["ServiceMonitor"]["spec"]["jobLabel"]
    assert manifests["Service"]["metadata"]["labels"][label] == "penstock"


@needs_helm
def test_the_chart_is_what_helm_wants() -> None:
    done = helm("lint", "--strict", CHART, "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout


@needs_helm
def test_the_chart_makes_the_plain_manifests() -> None:
    def comparable(manifests: list[Manifest]) -> dict[str, Manifest]:
        kinds = by_kind(copy.deepcopy(manifests))
        for manifest in kinds.values():
            for helms in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
                manifest["metadata"]["labels"].pop(helms, None)
        kinds["StatefulSet"]["spec"]["template"]["metadata"].pop("annotations", None)
        data = kinds["ConfigMap"]["data"]
        data["pipeline.yaml"] = yaml.safe_load(data["pipeline.yaml"])
        return kinds

    assert comparable(rendered("serviceMonitor.enabled=true")) == comparable(plain())
    assert "ServiceMonitor" not in by_kind(rendered())


@needs_helm
def test_every_value_does_something_that_kubernetes_accepts(tmp_path: Path) -> None:
    manifests = rendered(*EVERYTHING, release="shop")
    validate(manifests)
    text = json.dumps(manifests)
    assert "r.example.com/p@sha256:000" in text
    assert {manifest["metadata"]["name"] for manifest in manifests} == {"shop-penstock"}
    wanted = (
        "fast",
        "ReadWriteOncePod",
        "ssd",
        "high",
        "/etc/ca",
        "theirs",
        "prometheus",
        '"a": "b"',
        '"c": "d"',
    )
    assert [value for value in wanted if value not in text] == []
    assert environment(manifests)["STARTUP_MODE"] == "streaming_only"
    assert configured(manifests, tmp_path).initial_copy.workers == 8


@needs_helm
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("replicas=2", "replicas"),
        ("config.sources=[]", "sources"),
        ("env.EXPORT_BATCH_SIZE=1000000", "EXPORT_BATCH_SIZE"),  # helm would write 1e+06
        ('image.digest="latest"', "digest"),
        ("monitoring.port=80", "port"),
        ('persistence.size="much"', "size"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, told: str) -> None:
    done = helm("template", "penstock", CHART, "--kube-version", KUBERNETES, "--set-json", value)
    assert done.returncode != 0
    assert told in done.stderr


@needs_helm
def test_the_values_of_the_documentation_make_a_pipeline(tmp_path: Path) -> None:
    (values,) = re.findall(r"```yaml\n(# shop-values.yaml\n.+?)```", DOCUMENTATION.read_text(), re.DOTALL)
    (tmp_path / "values.yaml").write_text(values)
    chosen = ("--values", tmp_path / "values.yaml", "--kube-version", KUBERNETES)
    done = helm("template", "shop", CHART, *chosen)
    assert done.returncode == 0, done.stderr
    manifests = [document for document in yaml.safe_load_all(done.stdout) if document]
    validate(manifests)
    assert [each.name for each in configured(manifests, tmp_path).destinations] == ["events"]
    assert pod(manifests)["containers"][0]["image"].startswith("registry.example.com/penstock:")


def test_every_value_is_in_the_schema_and_documented() -> None:
    text = (CHART / "values.yaml").read_text()
    values, schema = yaml.safe_load(text), json.loads((CHART / "values.schema.json").read_text())

    def keys(value: Any, described: Any) -> None:
        properties = described.get("properties", {})
        assert set(value) <= set(properties)
        for key, inner in value.items():
            if properties[key].get("additionalProperties") is False:
                keys(inner, properties[key])

    keys(values, schema)
    assert set(schema["properties"]) - set(values) == {"global"}


def test_versions_are_one() -> None:
    from penstock import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    labels = by_kind(plain())["StatefulSet"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/version"] == __version__
    assert pod(plain())["containers"][0]["image"] == f"penstock:{__version__}"
    assert f"ARG VERSION={__version__}\n" in (PLAIN.parent / "Dockerfile").read_text()
