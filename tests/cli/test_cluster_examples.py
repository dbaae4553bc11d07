"""The files of examples/cluster: what they name is known to the command line."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from posthouse.cli.cluster_up import broker_settings, data_folder
from posthouse.cli.parser import make_parser
from posthouse.server.cluster_plan import plan_of
from posthouse.server.config import load

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
DOCS = Path(__file__).parents[2] / "docs" / "cluster.md"


def a_plan(environment: dict[str, str], folder: Path) -> Any:
    secret = folder / "secret"
    secret.write_text("s" * 64)
    return plan_of({**environment, "POSTHOUSE_CLUSTER_SECRET_FILE": str(secret)})


def test_the_services_of_the_compose_file_are_nodes_of_one_cluster(tmp_path: Path) -> None:
    content = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    secrets = content["secrets"]
    assert set(content["services"]) == {"a", "b", "c"}
    for name, service in content["services"].items():
        words = shlex.split(service["command"])
        options = make_parser(words).parse_args(words)
        assert (options.run, options.node, options.only) == ("cluster_up:up", name, None)
        given = service["environment"]
        assert given["POSTHOUSE_CLUSTER_SECRET_FILE"] == f"/run/secrets/{service['secrets'][0]}"
        assert service["secrets"][0] in secrets
        plan = a_plan(given, tmp_path)
        machine = plan.machine(name)
        assert machine.host == name
        [port] = service["ports"]
        assert int(port.partition(":")[2]) == machine.port
        [volume] = service["volumes"]
        image = {**docker_environment(), **given}
        data = data_folder(None, plan, image)
        assert volume == f"{name}:{data}"
        # What the broker is started with, in the environment that is left to it, is understood.
        config = tmp_path / "broker.yaml"
        config.write_text(yaml.safe_dump(broker_settings(plan, machine, data)))
        left = {key: text for key, text in image.items()
                if key not in ("POSTHOUSE_PEERS", "POSTHOUSE_CLUSTER_SECRET_FILE")}  # fmt: skip
        understood = load({"config": str(config)}, left)
        assert (understood.cluster, understood.node) == ("shop", name)
        assert understood.durability == "fsync"
        assert understood.advertise == f"{name}:5672"


def docker_environment() -> dict[str, str]:
    [line] = re.findall(r"^ENV (.*)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    return dict(word.split("=", 1) for word in shlex.split(line))


def test_the_image_runs_posthouse_and_stops_it_as_it_is_meant() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["posthouse"]' in text
    assert "STOPSIGNAL SIGTERM" in text
    assert docker_environment()["POSTHOUSE_DATA"] == "/data"


@pytest.mark.parametrize(
    ("unit", "only"), [("posthouse-nats.service", "nats"), ("posthouse.service", "broker")]
)
def test_each_unit_runs_one_of_the_two_programs(unit: str, only: str) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / unit)
    words = shlex.split(parser["Service"]["ExecStart"])[1:]
    options = make_parser(words).parse_args(words)
    assert (options.run, options.only) == ("cluster_up:up", only)
    assert "Requires" not in parser["Unit"], "it would take the other along"
    assert "BindsTo" not in parser["Unit"]


def alerts() -> list[dict[str, Any]]:
    content = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def alert_metrics() -> set[str]:
    return {name for rule in alerts() for name in re.findall(r"posthouse_\w+", rule["expr"])}


def test_every_alert_is_explained_and_goes_by_metrics_that_are() -> None:
    docs = DOCS.read_text()
    for rule in alerts():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert f"`{rule['alert']}`" in docs, rule
        assert rule["annotations"]["summary"]
    for name in alert_metrics():
        assert f"`{name}`" in docs, name
