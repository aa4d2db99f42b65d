"""The host that a person is shown before a page is opened."""

from __future__ import annotations

import pytest

from a2c_smcp.protocol.escaping import web_host

pytestmark = pytest.mark.covers("9-sign-in-addresses")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://good.example", "good.example"),
        ("HTTPS://Good.Example:8443/a?b=c#d", "good.example:8443"),
        ("https://honest.example@evil.example/", "evil.example"),
        ("https://a@b@evil.example/", "evil.example"),
        ("https://xn--bcher-kva.example/?q=ß", "xn--bcher-kva.example"),
        ("http://127.0.0.1:8000/x", "127.0.0.1:8000"),
        ("http://[0:0::1]:8000/x", "[::1]:8000"),
        ("https://1password.example.", "1password.example."),
        ("https://a_b.example:/", "a_b.example"),
    ],
)
def test_the_host_that_is_shown_is_the_one_that_a_browser_opens(url: str, host: str) -> None:
    assert web_host(url) == host


@pytest.mark.parametrize(
    "url",
    [
        r"https://evil.example\.good.example/",
        r"https://good.example\@evil.example/",
        r"https:\\evil.example",
        "https://faß.example",
        "https://ΟΔΟΣ.example",
        "https://οδος.example",
        "https://οδοσ.xn--bcher-kva.example",
        "https://bücher.example",
        "https://faẞ.example",
        "https://good。example",
        "https://ｅvil.example",
        "https://evil.example%2egood.example",
        "https://%65vil.example",
        "https://good.example%00.evil.example",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://1.2.3/",
        "http://good.example.0x/",
        "http://[::1].evil.example/",
        "http://evil.example[::1]/",
        "http://[fe80::1%251]/",
        "http://[1.2.3.4]/",
        "https:evil.example",
        "https:/evil.example",
        "https:///evil.example",
        "https://good.example;evil.example/",
        "https://good.example:80a/",
        "https://good.example\t.evil.example/",
        "https://good.example\n.evil.example/",
        " https://good.example",
        "https://good.example /",
        "https://good\u200d.example/",
        "javascript://good.example/%0aalert(1)",
        "https://@/",
        "https://",
        "",
    ],
)
def test_an_address_that_a_browser_may_read_in_another_way_has_no_host_to_show(url: str) -> None:
    assert web_host(url) == ""
