"""Scrapes of `/metrics`."""

from __future__ import annotations

import re

import aiohttp

Samples = dict[str, float]


async def scrape(url: str) -> Samples:
    """The samples of one scrape. Each metric is announced, and its series stand together."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"{url}/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = await response.text()
    samples: Samples = {}
    announced: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            announced.append(line.split()[2])
        elif not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            assert re.match(rf"{announced[-1]}(_bucket|_sum|_count)?(\{{|$)", series), line
            assert series not in samples
            samples[series] = float(value)
    assert len(set(announced)) == len(announced)
    return samples


def total(samples: Samples, start: str) -> float:
    return sum(value for series, value in samples.items() if re.match(rf"{start}(\{{|$)", series))
