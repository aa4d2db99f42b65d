"""`a2c-smcp demo` in Windows' own Python."""

from __future__ import annotations

import pytest

from tests.windows.conftest import OnWindows

LONG = 240.0
"""A bound against hanging: everything is compiled once."""


@pytest.mark.covers("windows-programs")
async def test_the_demo_shows_all_it_claims_in_a_code_page_that_lacks_characters_of_it(windows: OnWindows) -> None:
    demo = await windows.a2c("demo", "--fast")
    assert await demo.ends(LONG) == 0, demo.said
    assert await demo.says("no process left behind")
    assert await demo.says("\\u2713 a dead server comes back")  # the check mark is not in this code page
    assert (await demo.says("next: ")).startswith("next: ")
    assert [line for line in demo.err if not line.startswith("aiofastnet")] == []  # which minds umlauts in its own path
