"""Window URIs (004)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.errors import InvalidWindowURI
from a2c_smcp.protocol.window_uri import WindowURI

pytestmark = pytest.mark.covers("window-uri")

parse = WindowURI.parse

uris = st.builds(
    WindowURI,
    host=st.from_regex(r"\A[A-Za-z0-9._~:-]{1,20}\Z") | st.sampled_from(["桌面.例子", "com.example.mcp"]),
    path=st.lists(st.text(min_size=1), max_size=4).map(tuple),
    priority=st.none() | st.integers(0, 100),
    fullscreen=st.none() | st.booleans(),
)


@pytest.mark.parametrize(
    ("uri", "window"),
    [
        (
            "window://com.example.browser/main/tab1?priority=80&fullscreen=true",
            WindowURI("com.example.browser", ("main", "tab1"), 80, True),
        ),
        ("window://com.example.logger", WindowURI("com.example.logger")),
        (
            "window://com.example.editor/src%2Fmain/file%20name",
            WindowURI("com.example.editor", ("src/main", "file name")),
        ),
        ("window://h/a/b/c%2Fd", WindowURI("h", ("a", "b", "c/d"))),
    ],
)
def test_the_examples_of_004_are_read_and_written_as_there(uri: str, window: WindowURI) -> None:
    assert parse(uri) == window
    assert str(window) == uri


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        ("", ()),
        ("/", ()),
        ("/a", ("a",)),
        ("/c%2Fd", ("c/d",)),
        ("/c%2fd/e", ("c/d", "e")),
        ("/%E6%A1%8C%E9%9D%A2", ("桌面",)),
        ("/桌面", ("桌面",)),
        ("/a+b", ("a+b",)),
        ("/100%25", ("100%",)),
        ("/%252F", ("%2F",)),
        ("/%3Fpriority=5%23x", ("?priority=5#x",)),
        ("/../.", ("..", ".")),
    ],
)
def test_each_path_segment_is_decoded_by_itself(path: str, segments: tuple[str, ...]) -> None:
    assert parse(f"window://h{path}").path == segments


@pytest.mark.parametrize(("text", "priority"), [("0", 0), ("1", 1), ("50", 50), ("100", 100), ("%35", 5)])
def test_priority_is_an_integer_from_0_to_100(text: str, priority: int) -> None:
    assert parse(f"window://h?priority={text}").priority == priority


@pytest.mark.parametrize(
    "text",
    ["", "-1", "101", "999", "1000", "1.0", "1e1", "x", "٣", "+5", "%205", "5%20", "0x5", "1_0", "None", "9" * 5000],
)
def test_any_other_priority_is_refused(text: str) -> None:
    with pytest.raises(InvalidWindowURI):
        parse(f"window://h?priority={text}")


@pytest.mark.parametrize(
    ("word", "fullscreen"),
    [
        *((word, True) for word in ("true", "1", "yes", "on", "True", "YES")),
        *((word, False) for word in ("false", "0", "no", "off", "False", "OFF")),
    ],
)
def test_fullscreen_takes_eight_words(word: str, fullscreen: bool) -> None:
    assert parse(f"window://h/p?fullscreen={word}").fullscreen is fullscreen


@pytest.mark.parametrize(
    "word", ["", "2", "t", "f", "y", "n", "enabled", "null", "none", "truee", "%20true", "-1", "01"]
)
def test_any_other_fullscreen_is_refused(word: str) -> None:
    with pytest.raises(InvalidWindowURI):
        parse(f"window://h/p?fullscreen={word}")


def test_options_that_are_absent_are_none() -> None:
    assert (parse("window://h").priority, parse("window://h").fullscreen) == (None, None)


def test_options_we_do_not_know_are_passed_over() -> None:
    assert parse("window://h/p?theme=dark&priority=3&x") == WindowURI("h", ("p",), 3)


@pytest.mark.parametrize(
    "uri",
    [
        *("", "window", "window:", "window:/", "window://", "window:///p", "window://?priority=1", "window:h/p"),
        *("//h/p", "h/p"),
        *("http://h/p", "windows://h", "window2://h", "file:///etc/passwd", "desktop://h", "://h"),
        *("window://u@h", "window://u:p@h/p", "window://h%2Fx/p", "window://a b/p", "window://[", "window://[::1/p"),
        *("window://h/%ff", "window://h/%C3%28", "window://h?priority=%ff"),
        *("window://h?priority=1&priority=1", "window://h?fullscreen=on&fullscreen=off"),
        *(" window://h", "window://h ", "window://h\n", "\twindow://h", "win\tdow://h", "window://h/a\nb"),
        "window://h\r/a",
        *("window://h/\x00", "window://h/\ud800", "window://\ud800"),
    ],
    ids=ascii,
)
def test_a_string_that_is_no_window_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidWindowURI):
        parse(uri)


@pytest.mark.parametrize(
    "fields",
    [
        *({"host": host} for host in ("", "a/b", "a?b", "a#b", "a b", "a@b", "a%b", "a\n", "\x00")),
        {"host": "h", "path": ("a", "")},
        *({"host": "h", "priority": priority} for priority in (-1, 101, 1.0, True, "5")),
    ],
    ids=str,
)
def test_a_window_uri_that_could_not_be_read_back_cannot_be_built(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidWindowURI):
        WindowURI(**fields)  # type: ignore[arg-type]


@given(uris)
def test_a_window_uri_that_is_written_is_read_back_the_same(uri: WindowURI) -> None:
    assert parse(str(uri)) == uri


@given(
    st.text()
    | st.text().map("window://h/{}".format)
    | st.text().map("window://{}".format)
    | st.text().map("window://h?{}".format)
)
def test_any_text_is_a_window_uri_or_refused_as_none(text: str) -> None:
    try:
        uri = parse(text)
    except InvalidWindowURI:
        return
    assert parse(str(uri)) == uri
