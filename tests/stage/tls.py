"""Certificates, and a port that speaks TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from tests.balancer import exchange


def certificate(
    folder: Path, name: str, secrecy: KeySerializationEncryption | None = None, *, host: str = "localhost"
) -> tuple[Path, Path]:
    """A self-signed certificate for this machine, or a host, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = [x509.DNSName(host), *([address] if host == "localhost" else [])]
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    cert_file, key_file = folder / f"{name}.pem", folder / f"{name}-key.pem"
    cert_file.write_bytes(cert.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secrecy or NoEncryption()))
    return cert_file, key_file


@asynccontextmanager
async def encrypted(port: int, folder: Path, host: str = "localhost") -> AsyncIterator[int]:
    """A port that speaks TLS and passes everything on to another. Its certificate is `cert.pem` in the folder."""
    cert, key = certificate(folder, "cert", host=host)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", port)
        await exchange((reader, before), (behind, writer))

    async with await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
