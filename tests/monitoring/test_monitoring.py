"""The files in `examples/monitoring`, with Debian's Prometheus: it scrapes a real Server and a real computer."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ports import free_port
from tests.stage.place import Place, good
from tests.stage.web import fetch

FILES = Path(__file__).parents[2] / "examples" / "monitoring"
PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""

EMPTY = {
    "Clients cut",
    "Answers of people",
    "Round trips to the store (p95)",
    "Conflicts and errors of the store",
    "Refusals",
}
"""Panels that may be empty here: a Server alone, at which nothing goes wrong."""


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is missing: install Debian's package prometheus, or put it on the PATH"
    return found


def promtool(*words: str, **options: Any) -> str:
    done = subprocess.run([program("promtool"), *words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_their_tests_pass() -> None:
    promtool("check", "rules", "alerts.yml", cwd=FILES)
    promtool("check", "config", "prometheus.yml", cwd=FILES)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", cwd=FILES)


class Scraped:
    """A Prometheus that scrapes a Server and a computer."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def query(self, expression: str) -> list[Any]:
        answer = (await fetch(f"{self._url}/api/v1/query", params={"query": expression})).json
        assert answer["status"] == "success", (expression, answer)
        return list(answer["data"]["result"])

    async def until(self, expression: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    if await self.query(expression):
                        return
                except (aiohttp.ClientError, json.JSONDecodeError):  # it is starting
                    pass
                await asyncio.sleep(0.1)


@pytest.fixture
async def scraped(place: Place, tmp_path: Path) -> AsyncIterator[tuple[Scraped, dict[str, str]]]:
    """Prometheus after some calls, and the URLs that it scrapes."""
    config = place.write({"good": good()})
    server = await place.start("server", "--port", "0", "--metrics")
    url = (await server.says("listening on ")).removeprefix("listening on ")
    words = ("--name", "laptop", "--url", url, "--config", str(config), "--metrics-port", "0")
    computer = await place.start("computer", *words)
    own = (await computer.says("metrics at ")).removeprefix("metrics at ").removesuffix("/metrics")
    await computer.says("ready")
    await computer.says("joined ")
    urls, port = {"a2c-server": url, "a2c-computer": own}, free_port()
    prometheus = await start_prometheus(tmp_path, urls, port)
    try:
        scraped = Scraped(f"http://127.0.0.1:{port}")
        await scraped.until("count(a2c_connections) and count(a2c_computer_tools)")
        for number in (1, 2, 3):
            ended = await place.run("agent", "call", "laptop", "add", "a=1", "b=2", "--url", url)
            assert ended.code == 0, ended.err
            await scraped.until(f'a2c_calls_total{{event="client:tool_call"}} == {number}')  # a rate needs two
        await scraped.until('rate(a2c_calls_total{event="client:tool_call"}[1m]) > 0')
        await scraped.until("rate(a2c_computer_call_duration_seconds_count[1m]) > 0")
        yield scraped, urls
    finally:
        prometheus.terminate()
        await prometheus.wait()


async def start_prometheus(folder: Path, urls: dict[str, str], port: int) -> asyncio.subprocess.Process:
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [url.removeprefix("http://")]}]} for job, url in urls.items()
    ]
    rules = [str(FILES / "alerts.yml")]
    config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "rule_files": rules}
    (folder / "prometheus.yml").write_text(json.dumps(config | {"scrape_configs": jobs}), "utf-8")
    return await asyncio.create_subprocess_exec(
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
        stdout=-3,
    )


def queries_of_dashboard() -> list[tuple[str, str]]:
    """Each query with the title of its panel, as Grafana would send it for all Servers and computers."""
    dashboard = json.loads((FILES / "dashboard.json").read_text("utf-8"))
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    values = {"$__rate_interval": "1m", "$job": ".*", "$node": ".*", "$computers": ".*"}
    for variable, value in values.items():
        found = [(title, expression.replace(variable, value)) for title, expression in found]
    assert not [expression for _, expression in found if "$" in expression]
    return found


async def test_every_query_of_the_dashboard_is_answered_by_prometheus(scraped: tuple[Scraped, dict[str, str]]) -> None:
    prometheus, urls = scraped
    empty = {title for title, expression in queries_of_dashboard() if not await prometheus.query(expression)}
    assert empty <= EMPTY
    alerts = {each["metric"]["alertname"] for each in await prometheus.query('ALERTS{alertstate="firing"}')}
    assert alerts == set()
    for url in urls.values():
        metrics = await fetch(f"{url}/metrics")
        assert promtool("check", "metrics", input=metrics.text) == "", "promtool finds nothing to improve"


def test_the_dashboard_shows_every_metric() -> None:
    from a2c_smcp.telemetry.metrics import COMPUTER, SERVER

    shown = " ".join(expression for _, expression in queries_of_dashboard())
    for_alerts = (FILES / "alerts.yml").read_text("utf-8")
    hidden = {spec.name for spec in (*SERVER, *COMPUTER) if spec.name not in shown + for_alerts}
    assert hidden == {
        *(
            "a2c_build_info",
            "a2c_computer_build_info",
            "a2c_computer_calls_in_flight",
            "a2c_computer_blobs_total",
            "a2c_frozen",
        ),
        *("a2c_computer_refused_total", "a2c_computer_tools", "a2c_connects_total", "a2c_sessions"),
        "a2c_computer_frozen",
        *("process_open_fds", "process_start_time_seconds"),
    }
