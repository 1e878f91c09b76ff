"""What docs/deployment.md has people type, given: without a cluster and into another root folder, but by the
same programs and with the same words."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import KUBERNETES, PLAIN, ROOT, by_kind, needs_helm, plain
from tests.docs.blocks import lines, on_page

PAGE = "deployment.md"
LINES = [line for block in on_page(PAGE, "sh") for line in lines(block)]
PROGRAM = "/opt/penstock/bin/penstock"
ONLY_USER = 0o600

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="there is no kubectl (Debian: kubernetes-client)"
)
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None, reason="there is no systemd (Debian: systemd)"
)


def shell(line: str, folder: Path = ROOT) -> str:
    done = subprocess.run(["bash", "-ec", line], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_kubectl
def test_kubectl_makes_what_the_manifests_are() -> None:
    namespace, secret, apply = [line for line in LINES if line.startswith("kubectl ")]
    assert shell(f"{namespace} --dry-run=client -o name").strip() == "namespace/penstock"
    created = yaml.safe_load(shell(f"{secret} --dry-run=client -o yaml"))
    example = yaml.safe_load((PLAIN / "secret.example.yaml").read_text())
    assert created["data"].keys() == example["stringData"].keys()
    assert created["metadata"]["name"] == example["metadata"]["name"]
    applied = yaml.safe_load_all(shell(f"kubectl kustomize {apply.partition(' apply -k ')[2]}"))
    expected = by_kind(plain())
    del expected["ServiceMonitor"]
    assert by_kind(applied).keys() == expected.keys()


@needs_helm
def test_helm_installs_the_chart_with_the_values_of_the_page(tmp_path: Path) -> None:
    (line,) = [line for line in LINES if line.startswith("helm install ")]
    values = re.search(
        r"```yaml\n# (shop-values.yaml)\n(.+?)```", (ROOT / "docs" / PAGE).read_text(), re.DOTALL
    )
    assert values is not None
    (tmp_path / values[1]).write_text(values[2])
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    given = line.replace("helm install", "helm template") + f" --kube-version {KUBERNETES}"
    manifests = by_kind(document for document in yaml.safe_load_all(shell(given, tmp_path)) if document)
    assert manifests["StatefulSet"]["metadata"]["name"] == "shop-penstock"


@needs_systemd
def test_the_unit_is_put_where_systemd_finds_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("opt", "etc/systemd/system", "usr/lib/sysusers.d", "usr/lib/systemd/system"):
        (root / folder).mkdir(parents=True)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "shop.yaml").write_text("pipeline: shop\n")
    (block,) = [block for block in on_page(PAGE, "sh") if PROGRAM.rpartition("/")[0] in block.text]
    environment, *steps, log = lines(block)
    shell(_below(root, environment.partition(" && ")[0]).replace("venv ", "venv --without-pip "))
    for step in steps:
        shell(_below(root, step), tmp_path)

    assert re.search(r"(?m)^penstock:", (root / "etc/passwd").read_text())
    (wanted,) = (root / "etc/systemd/system/multi-user.target.wants").iterdir()
    assert wanted.name == "penstock@shop.service"
    assert (root / "etc/systemd/system/penstock@.service").read_text().count(PROGRAM) > 0
    assert stat.S_IMODE((root / "etc/penstock/shop.env").stat().st_mode) == ONLY_USER
    assert (root / "etc/penstock/shop.yaml").read_text() == "pipeline: shop\n"
    assert (root / "opt/penstock/bin/python3").exists()
    shell(log.replace(" -f", " --no-pager --lines=0"))


def _below(root: Path, line: str) -> str:
    """The same in another root folder, where nothing can be started."""
    line = re.sub(r" /(opt|etc|usr)/", rf" {root}/\1/", line)
    line = re.sub(r"systemd-sysusers$", f"systemd-sysusers --root={root}", line)
    return re.sub(r"systemctl enable --now", f"systemctl --root={root} enable", line)
