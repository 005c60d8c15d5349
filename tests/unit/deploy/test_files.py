"""The files under deploy/ name options, metrics and paths that exist, and their own tools accept them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import typer
import yaml

import millstream
from millstream.cli import app
from millstream.server.serving import running
from millstream.server.settings import Settings

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
PROMETHEUS = re.compile(r"\bmillstream_[a-z_]+")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def check_command(words: list[str]) -> None:
    """Every option of a command line exists, and each command."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    options = {name for parameter in command.params for name in parameter.opts}
    named = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert named, words
    assert set(named) <= options


def commands() -> list[tuple[str, list[str]]]:
    """Every command line of `millstream` in the files."""
    lines: list[tuple[str, list[str]]] = []
    for unit in UNITS:
        line = re.search(r"^ExecStart=\S+/millstream (.*)$", unit.read_text(), re.MULTILINE)
        assert line is not None, unit
        lines.append((unit.name, line[1].split()))
    for path in COMPOSE:
        (services,) = [document["services"] for document in documents(path)]
        lines += [(path.name, service["command"]) for service in services.values()]
    for path in MANIFESTS:
        for manifest in documents(path):
            if manifest["kind"] == "StatefulSet":
                for container in manifest["spec"]["template"]["spec"]["containers"]:
                    lines.append((path.name, container["args"]))
    text = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    return [*lines, ("Dockerfile", msgspec.json.decode(command))]


@pytest.mark.parametrize(("file", "words"), commands())
def test_every_option_exists(file: str, words: list[str]) -> None:
    check_command(words)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_waits_for_readiness_and_is_watched(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    service = parser["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 10
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) > Settings().stop_s
    assert service["User"] != "root"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze")
    instances = {
        "millstream-node@": "millstream-node@a",
        "millstream-worker@": "millstream-worker@root",
    }
    for unit in [*UNITS, DEPLOY / "systemd" / "millstream.socket"]:
        text = unit.read_text().replace("/opt/millstream/bin/millstream", "/bin/true")
        text = text.replace("/opt/%i/bin/millstream", "/bin/true").replace(
            "User=millstream", "User=root"
        )
        (tmp_path / (instances.get(unit.stem, unit.stem) + unit.suffix)).write_text(text)
    units = sorted(str(unit) for unit in tmp_path.iterdir())
    command = [program, "verify", "--man=no", "--recursive-errors=no", *units]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
    names = [Path(unit).name for unit in units]
    wrong = [line for line in outcome.stderr.splitlines() if any(name in line for name in names)]
    assert not wrong, "\n".join(wrong)


def metric_names(tmp_path: Path) -> set[str]:
    """The names of all metrics of a server with a log, a cursor, a queue, a room and backups."""
    with millstream.open(tmp_path / "store.db") as ms:
        ms.log("orders").append(b"x")
        ms.log("orders").cursor("reader")
        ms.create_queue("mail", sources=["orders"])
        ms.room("hall").send("chat", "hello")
    settings = Settings(port=0, backup_place=str(tmp_path / "backup"))
    with running(tmp_path / "store.db", settings) as server:
        text = httpx.get(f"{server.url}/metrics").text
    lines = text.splitlines()
    samples = {line.split("{")[0].split()[0] for line in lines if not line.startswith("#")}
    return samples | {line.split()[2] for line in lines if line.startswith("# TYPE ")}


def cluster_metrics() -> set[str]:
    """The names of the metrics of a node, which a single server does not have."""
    source = Path(millstream.__file__).parent / "server" / "observe" / "metrics.py"
    text = source.read_text().partition("def _of_cluster")[2].partition("\ndef ")[0]
    names = re.findall(r'^ +\(?"([a-z_]+)",', text, re.MULTILINE) + re.findall(
        r'\("([a-z_]+)", "', text
    )
    return {f"millstream_cluster_{name}{end}" for name in names for end in ("", "_total")}


def test_alerts_and_dashboard_name_metrics_that_exist(tmp_path: Path) -> None:
    known = metric_names(tmp_path) | cluster_metrics() | {"millstream_scrub_findings"}
    dashboard = msgspec.json.decode((DEPLOY / "grafana" / "millstream.json").read_bytes())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for group in documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"]:
        expressions += [rule["expr"] for rule in group["rules"]]
    for expression in expressions:
        assert expression.count("(") == expression.count(")"), expression
        assert set(PROMETHEUS.findall(expression)) <= known, expression


def test_every_alert_says_what_to_do() -> None:
    (alerts,) = documents(DEPLOY / "prometheus" / "alerts.yaml")
    for rule in alerts["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        for command in re.findall(r"`millstream ([a-z ]+)", rule["annotations"]["description"]):
            found: Any = typer.main.get_command(app)
            for word in command.split():
                found = found.commands[word]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_run_without_privileges_and_match_their_services(path: Path) -> None:
    manifests = documents(path)
    (pods,) = [manifest["spec"] for manifest in manifests if manifest["kind"] == "StatefulSet"]
    template = pods["template"]
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    labels = template["metadata"]["labels"]
    assert pods["selector"]["matchLabels"] == labels
    services = {m["metadata"]["name"]: m["spec"] for m in manifests if m["kind"] == "Service"}
    assert pods["serviceName"] in services
    assert all(service["selector"] == labels for service in services.values())
    volumes = {v["name"] for v in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in pods["volumeClaimTemplates"]}
    for container in template["spec"]["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["readinessProbe"]["httpGet"]["path"] == "/health"


def test_the_image_runs_as_a_user_and_has_a_health_check() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert int(user) > 0
    assert f"useradd --uid {user} " in text
    assert "HEALTHCHECK" in text
    for source in re.findall(r"^COPY ([^-].*) \S+$", text, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in source.split())


def test_proxies_pass_sockets_on_and_wait_long_enough() -> None:
    nginx = (DEPLOY / "nginx" / "millstream.conf").read_text()
    caddy = (DEPLOY / "caddy" / "Caddyfile").read_text()
    for text in (nginx, caddy):
        assert text.count("{") == text.count("}")
        (seconds,) = re.findall(r"read_timeout (\d+)s", text)
        assert int(seconds) * 1_000 > Settings().wait_ms_max
    assert "proxy_set_header Upgrade" in nginx
