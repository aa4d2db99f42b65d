"""The error tree: codes, the shape on the wire, and the way back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp import errors
from a2c_smcp.errors import SMCPError

CODES = {  # WIRE §3, 4008 of §1, and PROTOCOL-0.4 §1
    400: {
        *("BadRequest", "UnsupportedEvent", "AmbiguousComputer", "InvalidWindowURI", "ConfigError", "NotPrivate"),
        "NotCarried",
    },
    401: {"NotAuthenticated"},
    403: {
        *("Forbidden", "WrongRole", "NotInOffice", "OfficeHasAgent", "NameTaken", "NameMismatch", "NotAuthorised"),
        *("ApprovalRefused", "ScannerRefused", "ToolForbidden", "DeviceMismatch"),
    },
    404: {
        *("NotFound", "ComputerNotFound", "AgentNotFound", "ComputerLeft", "ToolNotFound", "ServerNotFound"),
        *("QuestionNotFound", "ResourceNotFound", "PromptNotFound"),
    },
    408: {"CallTimeout"},
    410: {"ResultGone", "QuestionEnded"},
    413: {"TooLarge", "AnswerTooLarge"},
    421: {"SealedToUnknownKey"},
    423: {"Frozen"},
    426: {"SealingRequired"},
    429: {"RateLimited"},
    499: {"CallCancelled", "CallFrozen"},
    500: {"SMCPError"},
    503: {"Unavailable"},
    4006: {"AuthorizationRequired"},
    4007: {"AuthorizationFailed"},
    4008: {"VersionMismatch"},
    4014: {"ServerNotRegistered", "SkillNotFound"},
    4015: {"CapabilityNotSupported"},
    4016: {"InvalidSkillName"},
    4017: {"SkillFileNotAccessible"},
    4018: {"BlobNotAccessible"},
    4019: {"BlobWriteFailed"},
}
MODULES = (errors.__name__,)
CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, SMCPError)]
REFUSED = {400, 401, 403, 404, 413, 421, 423, 426, 429, *range(4006, 4019)}
"""Codes of what is refused before a tool runs (WIRE §5)."""
AFTERWARDS = {errors.ComputerLeft, errors.AnswerTooLarge}
"""What has such a code, and is said of calls that had begun."""

every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("error", "code", "message", "details", "x")), inner)
    ),
    max_leaves=12,
)


def received(answer: object) -> SMCPError:
    error = SMCPError.from_wire(answer)
    assert error is not None
    return error


@pytest.mark.covers("error-codes")
def test_every_class_has_the_code_of_the_table() -> None:
    found: dict[int, set[str]] = {}
    for cls in CLASSES:
        found.setdefault(cls.code, set()).add(cls.__name__)
    assert found == CODES


def test_every_class_of_the_tree_is_exported() -> None:
    def below(cls: type[SMCPError]) -> set[type[SMCPError]]:
        return {cls}.union(*(below(child) for child in cls.__subclasses__()))

    assert {cls for cls in below(SMCPError) if cls.__module__ in MODULES} == set(CLASSES)


def test_titles_tell_the_classes_of_one_code_apart() -> None:
    for cls in CLASSES:
        kin = [other for other in CLASSES if other.code == cls.code and other is not cls]
        assert not any(cls.title.startswith(other.title) for other in kin), cls


@pytest.mark.covers("office-one-agent")
def test_a_second_agent_is_refused_in_the_words_of_003() -> None:
    assert str(errors.OfficeHasAgent("office 'o'")).startswith("403 Agent sid should be equal to office_id")


@pytest.mark.covers("error-shape")
@every_class
def test_an_error_is_nested_and_flat_on_the_wire(cls: type[SMCPError]) -> None:
    error = {"code": cls.code, "message": f"{cls.title}: why", "details": {"field": "x"}}
    assert cls("why", field="x").to_wire() == {"error": error, **error}


def test_an_error_knows_what_it_is_about_and_what_is_wrong_with_it() -> None:
    error = errors.ConfigError("must be an object", subject="server 'files'", fields=["files"])
    assert error.message == "Bad configuration: server 'files': must be an object"
    assert (error.subject, error.reason) == ("server 'files'", "must be an object")
    assert error.about == "server 'files': must be an object"
    assert error.details == {"fields": ["files"]}


@every_class
def test_the_subject_of_an_error_survives_the_wire(cls: type[SMCPError]) -> None:
    for sent, about in ((cls("why: so", subject="it"), "it: why: so"), (cls(), cls.title)):
        back = received(sent.to_wire())
        assert (sent.about, back.about) == (about, about)


@pytest.mark.covers("error-shape", "peer-errors")
@pytest.mark.parametrize(
    "error",
    [
        errors.ServerNotRegistered("'files'", mcp_server="files"),
        errors.CapabilityNotSupported("no", mcp_server="files", capability="resources"),
        errors.AuthorizationRequired("sign in", mcp_server="files", auth_hint={"action": "x"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_fields_that_published_agents_read_beside_the_code_survive_any_server(error: SMCPError) -> None:
    wire = error.to_wire()
    lifted = {field: wire[field] for field in error.lifted}
    assert lifted.items() <= error.details.items()
    published = {"code": error.code, "message": error.message, **lifted}  # as a computer of another make sends it
    for answer in (wire, {"error": wire["error"]}, published, {**published, "details": {}}):
        back = SMCPError.from_wire(answer)
        assert type(back) is type(error)
        assert lifted.items() <= back.details.items()


def test_an_error_with_nothing_to_add_still_has_all_its_keys() -> None:
    wire = errors.Unavailable().to_wire()
    assert wire["error"] == {"code": 503, "message": "Server unavailable", "details": {}}


@pytest.mark.covers("error-shape")
@every_class
@pytest.mark.parametrize("shape", ["both", "nested", "flat"])
def test_every_class_comes_back_from_the_wire(cls: type[SMCPError], shape: str) -> None:
    wire = cls("why", toolId="t").to_wire()
    wire = {"both": wire, "nested": {"error": wire["error"]}, "flat": {k: v for k, v in wire.items() if k != "error"}}[
        shape
    ]
    error = received(wire)
    assert (type(error), error.code, error.message) == (cls, cls.code, f"{cls.title}: why")
    assert error.details == {"toolId": "t"}


@pytest.mark.covers("error-shape")
@every_class
@pytest.mark.parametrize("about", ["", "why, with: signs 403 and 空"])
def test_every_class_comes_back_from_the_text_of_a_refused_join(cls: type[SMCPError], about: str) -> None:
    sent = cls(about)
    error = SMCPError.from_text(str(sent))
    assert (type(error), str(error), error.details) == (cls, str(sent), {})


@pytest.mark.parametrize(
    ("code", "message", "cls"),
    [
        (403, "You shall not pass", errors.Forbidden),
        (404, "请求的工具不存在", errors.NotFound),
        (400, "", errors.BadRequest),
        (418, "I'm a teapot", SMCPError),
        (4242, "No such computer", SMCPError),
        (-32000, "MCP's own", SMCPError),
    ],
)
def test_words_or_codes_we_do_not_know_survive(code: int, message: str, cls: type[SMCPError]) -> None:
    error = received({"error": {"code": code, "message": message}})
    assert (type(error), error.code, error.message, error.details) == (cls, code, message, {})
    assert str(error) == f"{code} {message}"
    assert error.to_wire()["code"] == code


def test_a_foreign_code_does_not_change_the_class() -> None:
    SMCPError.from_wire({"code": 418, "message": "x"})
    assert SMCPError.code == 500


@pytest.mark.parametrize(
    "answer",
    [
        *(None, True, 7, "404 No such tool", [], [404, "x"], {}),
        {"error": None},
        {"error": "broken"},
        {"error": {}},
        {"error": {"code": 404}},
        {"error": {"message": "x"}},
        {"error": {"code": "404", "message": "x"}},
        {"error": {"code": 404.0, "message": "x"}},
        {"error": {"code": True, "message": "x"}},
        {"code": 404, "message": ["x"]},
        {"tools": [], "req_id": "r"},
        {"content": [], "isError": True},
    ],
)
def test_an_answer_without_an_error_is_not_read_as_one(answer: object) -> None:
    assert SMCPError.from_wire(answer) is None


@pytest.mark.parametrize("details", [None, [], "x", 5])
def test_details_that_are_no_object_are_dropped(details: object) -> None:
    error = received({"code": 404, "message": "x", "details": details})
    assert error.details == {}


@given(json_values)
def test_reading_never_fails_whatever_was_answered(answer: object) -> None:
    error = SMCPError.from_wire(answer)
    assert error is None or error.to_wire()["error"]["code"] == error.code


@pytest.mark.parametrize("text", [None, "", "no code at all", "403", "403x y", "9" * 5000, "-1 x", 403, "² squared"])
def test_a_text_that_is_not_ours_is_kept_as_far_as_it_goes(text: object) -> None:
    error = SMCPError.from_text(text)
    assert isinstance(error, SMCPError)
    assert str(text) in str(error)


def test_an_invalid_window_uri_is_also_a_value_error() -> None:
    assert issubclass(errors.InvalidWindowURI, ValueError)


@pytest.mark.covers("calls-outcome")
@every_class
def test_only_an_error_of_a_refusal_says_that_the_tool_has_not_run(cls: type[SMCPError]) -> None:
    assert cls().outcome == ("not_run" if cls.code in REFUSED and cls not in AFTERWARDS else "unknown")


@pytest.mark.covers("calls-outcome")
@every_class
@pytest.mark.parametrize("outcome", ["not_run", "unknown", "done"])
def test_an_outcome_given_to_an_error_is_sent_with_it(cls: type[SMCPError], outcome: Any) -> None:
    raised, later = cls("why", outcome=outcome), cls("why")
    later.outcome = outcome
    for sent in (raised, later):
        back = received(sent.to_wire())
        assert (sent.outcome, back.outcome) == (outcome, outcome)


@pytest.mark.parametrize("told", [None, "", "maybe", 1, ["done"], {}])
def test_an_invalid_outcome_is_ignored(told: Any) -> None:
    assert errors.BadRequest(outcome=told).outcome == "not_run"
    assert errors.CallTimeout(outcome=told).outcome == "unknown"


@pytest.mark.parametrize("code", [400, 403, 404, 413, 418, 429, 500])
def test_an_error_of_an_unknown_class_has_an_unknown_outcome(code: int) -> None:
    foreign = received({"code": code, "message": "computer disconnected"})
    assert foreign.outcome == "unknown"
