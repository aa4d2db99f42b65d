"""Files of a skill: what is sent of them, masked, and what hostile folders may not reach."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from a2c_smcp.computer.content.skill import SkillContents, SkillFile, SkillLimits, open_file
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.errors import BlobNotAccessible, ConfigError, SkillFileNotAccessible
from tests.stage.raising import raises

SECRET = "sk-live-9f8e7d6c5b4a39281706"
SKILL = "---\nname: x\n---\n"

Load = Callable[..., SkillFile]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside.md").write_text("outside")
    folder = tmp_path / "skill"
    (folder / "sub").mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"{SKILL}body")
    return folder


@pytest.fixture
def mask() -> Mask:
    return Mask()


@pytest.fixture
def load(root: Path, mask: Mask) -> Load:
    def load(rel_path: str, **limits: int) -> SkillFile:
        contents = SkillContents(mask, SkillLimits(**limits))
        return contents.load(partial(open_file, root, rel_path), "x", rel_path, None)

    return load


def refused(load: Load, rel_path: str) -> str:
    with pytest.raises(SkillFileNotAccessible) as error:
        load(rel_path)
    assert error.value.details["rel_path"] == rel_path[:4096]
    return str(error.value.details["reason"])


def all_of(file: SkillFile) -> bytes:
    content = b"".join(file.read(at, min(1000, file.total_size - at)) for at in range(0, file.total_size, 1000))
    assert hashlib.sha256(content).hexdigest() == file.sha256
    assert len(content) == file.total_size
    return content


# What is sent


@pytest.mark.parametrize(
    ("written", "body"),
    [
        (f"{SKILL}body\n".encode(), "body\n"),
        (b"---\r\nname: x\r\n---\r\none\r\ntwo\rthree", "one\ntwo\nthree"),
        (f"{SKILL}caf".encode() + b"\xe9!", "caf\ufffd!"),
        (b"---\nname: [\n---\nbody", "body"),
        (b"---\nname: x\nbody", "---\nname: x\nbody"),
        (f"{SKILL}$TFROBOT_HOME".encode(), "$TFROBOT_HOME"),
        (b"---\n---\n", ""),
        (b"", ""),
    ],
)
@pytest.mark.parametrize("place", ["SKILL.md", "sub/SKILL.md"])
def test_of_a_skill_file_the_text_after_its_frontmatter_is_sent(
    root: Path, load: Load, place: str, written: bytes, body: str
) -> None:
    (root / place).write_bytes(written)
    file = load(place)
    assert (file.body, file.mime_type, file.total_size) == (body, "text/markdown", len(body.encode()))
    assert file.sha256 == hashlib.sha256(body.encode()).hexdigest()
    assert all_of(load(place, inline=0)) == body.encode()


@pytest.mark.parametrize("content", [b"{}", b"a\r\nb", SKILL.encode() + b"x", b"\xef\xbb\xbfx", b"\xff\xfe", b"\0"])
def test_of_any_other_file_its_bytes_are_sent(root: Path, load: Load, content: bytes) -> None:
    (root / "a.json").write_bytes(content)
    (root / "run.py").write_bytes(content)
    assert all_of(load("run.py")) == all_of(load("a.json")) == content
    assert load("run.py").body is None
    if content.isascii():
        assert load("a.json").body == content.decode()


def test_a_text_that_is_not_utf_8_or_over_the_budget_is_not_inline(root: Path, load: Load) -> None:
    (root / "a.txt").write_bytes(b"\xff")
    assert load("a.txt").body is None
    (root / "a.txt").write_text("é" * 16_384)
    assert load("a.txt").body == "é" * 16_384
    (root / "a.txt").write_text("é" * 16_384 + "x")
    assert load("a.txt").body is None


def test_a_file_over_the_limit_is_refused_with_its_size(root: Path, load: Load) -> None:
    with (root / "huge.bin").open("wb") as file:
        file.truncate(10**12)
    with raises(SkillFileNotAccessible, details={"reason": "too_large", "rel_path": "huge.bin", "total_size": 10**12}):
        load("huge.bin")
    (root / "a.txt").write_text("x" * 101)
    assert load("a.txt", largest=101).total_size == 101
    with pytest.raises(SkillFileNotAccessible):
        load("a.txt", largest=100)


def test_the_limits_are_read_from_the_environment() -> None:
    assert SkillLimits.of_environment({}) == SkillLimits(32_768, 100 * 1024 * 1024)
    given = {"A2C_SKILL_INLINE_BUDGET": "10", "A2C_SKILL_MAX_SIZE": "20"}
    assert SkillLimits.of_environment(given) == SkillLimits(10, 20)
    for wrong in ("-1", "1e3", "x", "9" * 30):
        with pytest.raises(ConfigError, match="A2C_SKILL_MAX_SIZE"):
            SkillLimits.of_environment({"A2C_SKILL_MAX_SIZE": wrong})


# Secrets


KEY, LINE = f"key={SECRET}!", "x" * 70


@pytest.mark.parametrize(
    ("name", "written", "sent"),
    [
        *((name, KEY.encode(), b"key=***!") for name in ("SKILL.md", "a.json", "run.py", "LICENSE", "a.svg")),
        ("a.txt", b"\xff\r\n" + SECRET.encode() + b"\xfe", b"\xff\r\n***\xfe"),
        ("large.txt", f"{LINE}{SECRET}\n".encode() * 20_000, f"{LINE}***\n".encode() * 20_000),
        ("a.png", SECRET.encode(), SECRET.encode()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_secrets_are_masked_in_texts_and_size_and_hash_are_those_of_what_is_sent(
    root: Path, load: Load, mask: Mask, name: str, written: bytes, sent: bytes
) -> None:
    mask.add([SECRET])
    (root / name).write_bytes(written)
    assert all_of(load(name, inline=0)) == sent
    assert load(name).body in (None, sent.decode("utf-8", "replace"))


# Chunks


def test_a_chunk_of_a_file_that_has_changed_is_gone(root: Path, load: Load) -> None:
    (root / "a.bin").write_bytes(b"\0" * 100)
    file = load("a.bin")
    assert file == load("a.bin")
    assert hash(file) == hash(load("a.bin"))
    (root / "a.bin").write_bytes(b"\1" * 101)
    assert load("a.bin") != file
    with raises(BlobNotAccessible, details={"reason": "gone"}):
        file.read(0, 10)


def test_a_chunk_of_a_text_is_gone_when_a_new_secret_is_known(root: Path, load: Load, mask: Mask) -> None:
    (root / "a.txt").write_text(SECRET)
    file = load("a.txt", inline=0)
    mask.add([SECRET])
    with pytest.raises(BlobNotAccessible):
        file.read(0, 10)
    assert all_of(load("a.txt", inline=0)) == b"***"


def test_the_checks_are_made_anew_on_every_chunk(root: Path, load: Load) -> None:
    (root / "a.bin").write_bytes(b"\0" * 100)
    file = load("a.bin")
    (root / "a.bin").unlink()
    with raises(BlobNotAccessible, reason="gone"):
        file.read(0, 10)
    (root / "a.bin").symlink_to("../outside.md")
    with raises(BlobNotAccessible, reason="forbidden"):
        file.read(0, 10)


# What is not reached


@pytest.mark.covers("peer-skills", "9-get_skill")
@pytest.mark.parametrize(
    "path", ["../outside.md", "/etc/passwd", "sub/../../outside.md", "a\\b", "C:x", "sub/..", ".."]
)
def test_a_path_that_leaves_the_folder_is_refused(load: Load, path: str) -> None:
    assert refused(load, path) == "traversal"


@pytest.mark.covers("peer-skills", "9-get_skill")
def test_links_that_leave_the_folder_are_refused_and_others_are_followed(root: Path, load: Load) -> None:
    (root / "real.md").write_text("real")
    (root / "sub" / "inside.md").symlink_to("../real.md")
    (root / "absolute.md").symlink_to(root / "real.md")
    assert load("sub/inside.md").body == load("absolute.md").body == "real"
    (root / "out.md").symlink_to("../outside.md")
    (root / "passwd").symlink_to("/etc/passwd")
    (root / "nowhere").symlink_to("/etc/there-is-no-such-file")
    (root / "up").symlink_to("..")
    (root / "chain").symlink_to("up")
    (root / "twin").symlink_to(root.with_name("skill-twin"))
    root.with_name("skill-twin").mkdir()
    (root.with_name("skill-twin") / "a.md").write_text("twin")
    for path in ("out.md", "passwd", "nowhere", "up/outside.md", "chain/outside.md", "up", "twin/a.md"):
        assert refused(load, path) == "traversal", path


def test_the_private_file_is_forbidden_whether_it_is_there_or_not(root: Path, load: Load) -> None:
    assert refused(load, ".SkillEnv") == "forbidden"
    (root / ".skillenv").write_text("KEY=1")
    (root / "env.txt").symlink_to(".skillenv")
    for path in (".skillenv", "./.skillenv", "env.txt", "sub/.skillenv"):
        assert refused(load, path) == "forbidden"


@pytest.mark.covers("peer-skills")
def test_only_regular_files_are_opened(root: Path, load: Load) -> None:
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    for number in range(2000):
        (root / f"link{number}").symlink_to(f"link{number + 1}")
    paths = ["pipe", "loop", "link0", "sub", ".", "sub/", "missing", "SKILL.md/x", "a\0b", "\udcff\ud800", "x/" * 9000]
    for path in paths:
        assert refused(load, path) == "not_found", path


@pytest.mark.covers("peer-skills")
def test_a_link_that_is_swapped_in_again_and_again_never_leads_out(root: Path) -> None:
    """Whatever is opened while files and folders are replaced by links, it is never the file outside."""
    (root.parent / "elsewhere").mkdir()
    (root.parent / "elsewhere" / "a.md").write_text("outside")
    (root / "sub" / "a.md").write_text("inside")
    stop = threading.Event()

    def swap() -> None:
        link, kept = root.parent / "link", root.parent / "kept"
        while not stop.is_set():
            link.symlink_to(root.parent / "elsewhere")
            (root / "sub").rename(kept)
            link.rename(root / "sub")
            (root / "sub").unlink()
            kept.rename(root / "sub")

    swapping = threading.Thread(target=swap)
    swapping.start()
    outcomes = set()
    attempts, end = count(), time.monotonic() + 60
    try:
        while next(attempts) < 3000 or (b"inside" not in outcomes and time.monotonic() < end):
            try:
                with open_file(root, "sub/a.md") as file:
                    outcomes.add(file.read())
            except SkillFileNotAccessible as error:
                outcomes.add(error.details["reason"])
    finally:
        stop.set()
        swapping.join()
    assert outcomes <= {b"inside", "traversal", "not_found"}
    assert b"inside" in outcomes
