# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A certificate authority and one server certificate for all BMCs of a rack."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=3650)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file whose mode is right before its first byte is."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(data)


def _covers(certificate: Path, addresses: Sequence[str]) -> bool:
    """Return whether the certificate names all addresses and is valid for another day."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {str(a) for a in names.get_values_for_type(x509.IPAddress)}
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    return known >= set(addresses) and loaded.not_valid_after_utc > tomorrow


def ensure(directory: Path, addresses: Sequence[str]) -> tuple[Path, Path]:
    """Return the server's certificate and key, made when missing; `ca.pem` beside them is what clients trust."""
    directory.mkdir(parents=True, exist_ok=True)
    ca_file, certificate_file, key_file = (directory / n for n in ("ca.pem", "server.pem", "server.key"))
    if all(f.exists() for f in (ca_file, certificate_file, key_file)) and _covers(certificate_file, addresses):
        return certificate_file, key_file
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Simulated rack BMC CA")])
    ca = (
        x509.CertificateBuilder()
        .subject_name(ca_name)
        .issuer_name(ca_name)
        .public_key(ca_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Simulated BMC")]))
        .issuer_name(ca_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _LIFETIME)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(a)) for a in addresses]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    _write(key_file, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()), 0o600)
    _write(certificate_file, certificate.public_bytes(pem), 0o644)
    _write(ca_file, ca.public_bytes(pem), 0o644)
    return certificate_file, key_file
