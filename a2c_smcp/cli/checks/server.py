"""Checks of a Server: its health, certificate and clock, our key, and the protocol version."""

from __future__ import annotations

import time
from collections.abc import Iterator

from a2c_smcp.cli.checks.findings import Finding, ServerProbe, Situation, ok, problem, warning
from a2c_smcp.cli.errors import explained, sentence
from a2c_smcp.errors import SMCPError, Unavailable, VersionMismatch
from a2c_smcp.protocol import PROTOCOL_VERSION

__all__ = ["certificate", "clock", "health", "key", "protocol"]

_DAY = 24 * 3600
_SOON = 14
_SKEW = 30.0
"""Seconds between the clocks from which on tokens may be refused as not valid yet, or as expired."""

_RENEW = "The operator of the Server has to renew it."
_VOUCH = "--ca names a file of certificates that vouch for it."
_FAULTS = {
    9: "Set the clock of this machine, or wait until it begins.",
    10: f"{_RENEW} If it should be valid, look at the clock of this machine.",
    18: _VOUCH,
    19: _VOUCH,
    20: _VOUCH,
    62: "Use the name that it is for in --url.",
    64: "Use the name that it is for in --url.",
}
"""What to do, by OpenSSL's error numbers."""


def health(situation: Situation) -> Iterator[Finding]:
    probe = situation.probe
    if probe is None:
        return
    if probe.health is None and _is_unreachable(probe.refusal):
        yield _explained(probe)
    elif probe.health == 200:
        yield ok(f"{probe.place} answers.")
    else:
        status = probe.health or "nothing"
        yield warning(
            f"{probe.place} answers /healthz with {status}.",
            "Something else may be there, or a proxy that lets only /socket.io/ pass: look whether --url is right.",
        )


def certificate(situation: Situation) -> Iterator[Finding]:
    found = situation.probe.certificate if situation.probe else None
    if found is None:
        return
    days = (found.expires - time.time()) / _DAY
    if found.fault:
        yield problem(f"The certificate is not accepted: {found.fault}.", _FAULTS.get(found.number, _VOUCH))
    elif days < _SOON:
        yield warning(f"The certificate expires in {days:.0f} days.", _RENEW)
    else:
        yield ok(f"The certificate is valid for {days:.0f} days.")


def clock(situation: Situation) -> Iterator[Finding]:
    ahead = situation.probe.ahead if situation.probe else None
    if ahead is None:
        return
    if abs(ahead) > _SKEW:
        side = "ahead of" if ahead > 0 else "behind"
        yield warning(
            f"This clock is {abs(ahead):.0f} s {side} the Server's.",
            "Let both be set by the network (NTP): keys and tokens that expire are refused too early or too late.",
        )
    else:
        yield ok("This clock and the Server's agree.")


def key(situation: Situation) -> Iterator[Finding]:
    probe = situation.probe
    if probe is None or isinstance(probe.refusal, VersionMismatch):
        return
    if probe.exposure:
        what, remedy = probe.exposure
        yield warning(f"{what}.", remedy)
    if probe.refusal is None:
        yield ok("The Server accepts the key." if probe.has_key else "The Server lets us in without a key.")
    elif not _is_unreachable(probe.refusal):
        yield _explained(probe)
    elif probe.health is not None:
        yield problem(
            f"{probe.place} answers, but there is no way in.",
            "If there is a proxy in between, it has to pass /socket.io/ on, websockets too.",
        )


def protocol(situation: Situation) -> Iterator[Finding]:
    probe = situation.probe
    if probe is None:
        return
    if isinstance(probe.refusal, VersionMismatch):
        yield _explained(probe)
    elif probe.refusal is None:
        yield ok(f"The Server speaks version {PROTOCOL_VERSION} with us.")


def _is_unreachable(refusal: SMCPError | None) -> bool:
    return isinstance(refusal, Unavailable)


def _explained(probe: ServerProbe) -> Finding:
    assert probe.refusal
    failure = explained(probe.refusal, {"url": probe.place, "office": ""})
    return problem(sentence(failure.what), failure.remedy)
