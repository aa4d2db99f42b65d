"""Where identities are kept, and which devices are known."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from a2c_smcp.devices import identity as known_devices
from a2c_smcp.devices.identity import Identity, IdentityStore, KnownDevices, KnownPeer, vouched
from a2c_smcp.errors import ConfigError, DeviceMismatch, NotPrivate
from tests.program import forked

PEER = KnownPeer("https://hub.example.com", "desk", "computer", "laptop")

pytestmark = pytest.mark.covers("device-storage", "device-known")

KEYRING = """
import json, pathlib
from keyring.backend import KeyringBackend

class Kept(KeyringBackend):
    priority = 9
    path = pathlib.Path({path!r})
    def _all(self): return json.loads(self.path.read_text()) if self.path.exists() else {{}}
    def get_password(self, service, user): return self._all().get(service + user)
    def set_password(self, service, user, value):
        self.path.write_text(json.dumps(self._all() | {{service + user: value}}))
    def delete_password(self, service, user): pass
"""
SHOW = """
import sys
from pathlib import Path
from a2c_smcp.devices.identity import IdentityStore
found = IdentityStore("agent", Path(sys.argv[1])).load_or_make()
print(found.kept, found.identity.fingerprint)
"""


def showing(folder: Path, state: Path) -> list[str]:
    """A command that loads or makes the identity of an agent, and shows it."""
    script = folder / "show.py"
    script.write_text(SHOW, "utf-8")
    return forked(script, state)


def store(folder: Path) -> IdentityStore:
    return IdentityStore("computer", folder, use_keyring=False)


def test_an_identity_is_made_once_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
    assert store(tmp_path).load() is None
    made = store(tmp_path).load_or_make()
    again = store(tmp_path).load_or_make()
    assert (made.identity.public, made.was) == (again.identity.public, ())
    assert Path(made.place).stat().st_mode & 0o777 == 0o600
    assert Path(made.place).parent.stat().st_mode & 0o777 == 0o700
    assert IdentityStore("agent", tmp_path, use_keyring=False).load_or_make().identity.public != made.identity.public


def test_each_rotation_is_vouched_for_by_the_keys_before(tmp_path: Path) -> None:
    first = store(tmp_path).load_or_make().identity
    second = store(tmp_path).rotate().identity
    third = store(tmp_path).rotate()
    assert len({first.public, second.public, third.identity.public}) == 3
    kept = store(tmp_path).load()
    assert kept == third._replace(identity=kept.identity) if kept else False
    for known in (first, second):
        assert vouched(known.fingerprint, third.identity.public, third.was)
    text = Path(third.place).read_text()
    assert json.loads(text)["private"] not in (first.private, second.private)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_key_that_others_can_read_or_change_is_not_used(tmp_path: Path, mode: int) -> None:
    path = Path(store(tmp_path).load_or_make().place)
    path.chmod(mode)
    with pytest.raises(NotPrivate, match="chmod"):
        store(tmp_path).load_or_make()


def test_a_folder_that_others_can_change_is_not_used(tmp_path: Path) -> None:
    store(tmp_path).load_or_make()
    (tmp_path / "devices").chmod(0o770)
    with pytest.raises(NotPrivate):
        store(tmp_path).load_or_make()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"private": 1, "was": []}', '{"private": "QQ==", "was": []}'])
def test_a_damaged_key_is_never_replaced_silently(tmp_path: Path, text: str) -> None:
    path = Path(store(tmp_path).load_or_make().place)
    path.write_text(text)
    with pytest.raises(ConfigError, match="pair this device again"):
        store(tmp_path).load_or_make()
    assert path.read_text() == text


def test_processes_that_start_at_once_agree_on_one_identity(tmp_path: Path) -> None:
    argv = showing(tmp_path, tmp_path)
    environ = {**os.environ, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ) for _ in range(6)]
    assert len({each.communicate(timeout=60)[0] for each in started}) == 1


def test_where_there_is_a_keyring_the_key_is_in_no_file(tmp_path: Path) -> None:
    pytest.importorskip("keyring")
    kept, state = tmp_path / "keyring.json", tmp_path / "state"
    (tmp_path / "backend_for_tests.py").write_text(KEYRING.format(path=str(kept)))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHON_KEYRING_BACKEND": "backend_for_tests.Kept"}
    argv = showing(tmp_path, state)
    first, second = (subprocess.run(argv, capture_output=True, text=True, env=environ, check=True) for _ in range(2))
    assert first.stdout == second.stdout
    assert first.stdout.startswith("keyring ")
    private = json.loads(next(iter(json.loads(kept.read_text()).values())))["private"]
    assert not any(private in path.read_text() for path in state.rglob("*") if path.is_file())
    kept.unlink()
    lost = subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)
    assert lost.returncode
    assert "not in the keyring" in lost.stderr


def test_the_first_identity_is_kept_and_another_is_refused(tmp_path: Path) -> None:
    known, mine, other = KnownDevices(tmp_path), Identity.generate(), Identity.generate()
    with pytest.raises(DeviceMismatch, match=f"device trust {mine.fingerprint} computer laptop --office desk"):
        known.check(PEER, mine.public)
    known.check(PEER, mine.public, first_use=True)
    KnownDevices(tmp_path).check(PEER, mine.public)
    with pytest.raises(DeviceMismatch, match="device forget computer laptop --office desk --url https://hub"):
        KnownDevices(tmp_path).check(PEER, other.public, first_use=True)
    for elsewhere in (PEER._replace(office="x"), PEER._replace(origin="https://x"), PEER._replace(role="agent")):
        assert known.get(elsewhere) is None
    assert (tmp_path / "devices" / "known.json").stat().st_mode & 0o777 == 0o600


def test_names_that_cost_nothing_do_not_fill_the_file_and_push_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_devices, "_MOST_MET", 3)
    known, mine, friend = KnownDevices(tmp_path), Identity.generate(), Identity.generate()
    known.trust(PEER._replace(name="friend"), friend.fingerprint)
    names = [PEER._replace(name=f"n{number}") for number in range(5)]
    for peer in names[:3]:
        known.check(peer, mine.public, first_use=True)
    for peer in names[3:]:
        with pytest.raises(DeviceMismatch, match=f"device trust {mine.fingerprint} computer {peer.name}"):
            known.check(peer, mine.public, first_use=True)
    for peer in names[:3]:
        known.check(peer, mine.public, first_use=True)
    known.check(PEER._replace(name="friend"), friend.public)
    known.check(PEER._replace(office="x"), mine.public, first_use=True)
    known.check(PEER._replace(role="agent"), mine.public, first_use=True)
    known.forget(names[0])
    known.check(names[3], mine.public, first_use=True)
    known.trust(names[4], mine.fingerprint)
    assert len([*known]) == 7


def test_a_new_identity_is_accepted_when_the_known_one_vouches_for_it(tmp_path: Path) -> None:
    known, old, new, thief = KnownDevices(tmp_path), *(Identity.generate() for _ in range(3))
    known.check(PEER, old.public, first_use=True)
    with pytest.raises(DeviceMismatch):
        known.check(PEER, thief.public, [thief.vouch_for(thief.public)])
    known.check(PEER, new.public, [old.vouch_for(new.public)])
    with pytest.raises(DeviceMismatch):
        known.check(PEER, old.public)


def test_what_another_process_trusts_or_forgets_counts_at_once(tmp_path: Path) -> None:
    running, command = KnownDevices(tmp_path), KnownDevices(tmp_path)
    mine, other = Identity.generate(), Identity.generate()
    command.trust(PEER, mine.fingerprint)
    running.check(PEER, mine.public)
    command.trust(PEER, other.fingerprint)
    with pytest.raises(DeviceMismatch):
        running.check(PEER, mine.public)
    assert command.forget(PEER)
    assert not command.forget(PEER)
    running.check(PEER, mine.public, first_use=True)
    assert [each.how for each in command] == ["first use"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"devices": [1]}', '{"devices": [{"origin": 1}]}'])
def test_a_damaged_file_of_known_devices_trusts_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "devices").mkdir(mode=0o700)
    (tmp_path / "devices" / "known.json").write_text(text)
    with pytest.raises(ConfigError):
        KnownDevices(tmp_path).check(PEER, Identity.generate().public, first_use=True)


def test_a_file_that_others_can_change_trusts_nobody(tmp_path: Path) -> None:
    mine = Identity.generate()
    KnownDevices(tmp_path).trust(PEER, mine.fingerprint)
    (tmp_path / "devices" / "known.json").chmod(0o622)
    with pytest.raises(ConfigError, match="chmod"):
        KnownDevices(tmp_path).check(PEER, mine.public)


@pytest.mark.parametrize("fingerprint", ["", "short", "x" * 44, "é" * 43])
def test_only_fingerprints_can_be_trusted(tmp_path: Path, fingerprint: str) -> None:
    with pytest.raises(ConfigError, match="43"):
        KnownDevices(tmp_path).trust(PEER, fingerprint)
