"""The chart, rendered by helm, and the plain manifests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/penstock"
PLAIN = ROOT / "deploy/kubernetes"
HELM = shutil.which("helm")
KUBERNETES = "1.33.0"
"""What it is rendered for."""

Manifest = dict[str, Any]

needs_helm = pytest.mark.skipif(
    HELM is None,
    reason="there is no helm (go install helm.sh/helm/v3/cmd/helm@latest)",
)


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)


def rendered(*sets: str, release: str = "penstock") -> list[Manifest]:
    """What the chart makes with some values set."""
    options = [part for value in sets for part in ("--set-json", value)]
    done = helm("template", release, CHART, "--namespace", "data", "--kube-version", KUBERNETES, *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def plain() -> list[Manifest]:
    """What `kubectl apply -k` applies, and the ServiceMonitor."""
    names = yaml.safe_load((PLAIN / "kustomization.yaml").read_text())["resources"]
    return [yaml.safe_load((PLAIN / name).read_text()) for name in (*names, "servicemonitor.yaml")]


def by_kind(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in manifests}
