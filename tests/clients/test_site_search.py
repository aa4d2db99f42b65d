"""The search of the documentation's site, run by Node without a browser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.stage.site import PATIENCE

SEARCH = Path(__file__).with_name("javascript") / "site_search.js"


def test_the_search_of_the_site_finds_options_and_variables_as_they_are_written(site: Path) -> None:
    """Uses the index for pages that are opened as files."""
    cli = "reference/cli.html#a2c-smcp"
    queries = {"--redis": f"{cli}-server", "--idle-stop": f"{cli}-up", "A2C_OFFICE": f"{cli}-agent"}
    found = _searched(site, "en", *queries, "a--b")
    assert [section for section, places in zip(queries.values(), found, strict=False) if section not in places] == []
    assert found[-1] == []


def test_the_search_of_the_site_finds_chinese_words_inside_sentences(site: Path) -> None:
    (found,) = _searched(site, "zh", "座位")
    assert found[0] == "zh/concepts.html#座位"
    assert "zh/server.html#限制" in found


def test_sections_with_the_whole_name_come_first_also_without_its_hyphens(site: Path) -> None:
    written = ["trusted-proxy", "--trusted-proxy", "trusted proxy"]
    for query, found in zip(written, _searched(site, "en", *written), strict=True):
        pages = list(dict.fromkeys(place.partition("#")[0] for place in found))
        assert {"guides/production.html", "reference/cli.html", "server.html"} <= set(pages[:4]), query


def test_pages_in_the_language_of_the_reader_come_first(site: Path) -> None:
    for language in ("en", "zh"):
        (found,) = _searched(site, language, "auto_apply")
        are_chinese = [place.startswith("zh/") for place in found]
        assert set(are_chinese) == {True, False}
        assert are_chinese == sorted(are_chinese, reverse=language == "zh")


def _searched(site: Path, language: str, *queries: str) -> list[list[str]]:
    """The locations that the search finds for each query, in the order that a page in this language shows."""
    command = ["node", SEARCH, site, language, *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
