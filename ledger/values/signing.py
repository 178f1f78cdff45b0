"""Ed25519 keys: signing checkpoints, and checking signatures."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import TYPE_CHECKING, Self

from shuffle_ledger.ledger.errors import BadSignature, InvalidValue

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
KEY_FILE_MODE = 0o600
_KEY_FILE_BYTES_MAX = 10_000


class SigningKey:
    """A private Ed25519 key. Make one with `generate`, or read one with `load`."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        """Use `generate` or `load` instead."""
        self._private = private

    @classmethod
    def generate(cls) -> Self:
        """Return a new key, from the operating system's randomness."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - few commands sign

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the key in a file that `save` wrote (PEM, PKCS #8, not encrypted).

        Raises:
            InvalidValue: the file cannot be read or holds no such key.
        """
        expected = "a readable file with an Ed25519 private key in PEM, not encrypted (`audit keygen`)"
        try:
            return cls(_private_key(_content(path)))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidValue(field="signing_key", value=str(path), expected=expected) from error

    def save(self, path: Path) -> None:
        """Write the key to a new file that only its owner may read. Nothing is ever overwritten.

        Raises:
            InvalidValue: the file exists or cannot be written.
        """
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

        encoded = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_FILE_MODE)
        except OSError as error:
            expected = f"the path of a new file: {error.strerror}"
            raise InvalidValue(field="signing_key", value=str(path), expected=expected) from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(encoded)
            file.flush()
            os.fsync(file.fileno())

    @property
    def public_key_bytes(self) -> bytes:
        """Returns the public half: 32 bytes for all who check signatures."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes."""
        return self._private.sign(message)


def check(public_key: bytes, signature: bytes, message: bytes) -> None:
    """Raise BadSignature unless the key's owner signed exactly this message."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - few commands check
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - as above

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise BadSignature(
            "the signature is not that of this content: one of them was changed, or another key signed"
        ) from error


def read_public_key(text: str) -> bytes:
    """Return the 32 bytes of a public key: hexadecimal, or a file with that or with a key in PEM.

    The file may hold the private key: its public half is taken.

    Raises:
        InvalidValue: neither 64 hexadecimal digits nor a file with an Ed25519 key.
    """
    found = _from_hexadecimal(text)
    if found is not None:
        return found
    expected = f"{2 * PUBLIC_KEY_BYTES} hexadecimal digits, or a file with an Ed25519 public key"
    try:
        content = _content(Path(text))
        written = _from_hexadecimal(content.decode("ascii", errors="replace").strip())
        return written if written is not None else _from_pem(content)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidValue(field="public_key", value=text, expected=expected) from error


def _from_hexadecimal(text: str) -> bytes | None:
    exact = len(text) == 2 * PUBLIC_KEY_BYTES and set(text) <= set(string.hexdigits)
    return bytes.fromhex(text) if exact else None


def _from_pem(content: bytes) -> bytes:
    """Return the public half of a key in PEM; raises ValueError or TypeError as `_private_key`."""
    if b"PRIVATE KEY" in content:
        return _private_key(content).public_key().public_bytes_raw()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - as above

    try:
        public = serialization.load_pem_public_key(content)
    except UnsupportedAlgorithm as error:
        raise ValueError("a key of another algorithm") from error
    if not isinstance(public, Ed25519PublicKey):
        raise ValueError("a key of another algorithm")
    return public.public_bytes_raw()


def _private_key(content: bytes) -> Ed25519PrivateKey:
    """Return the private key in PEM, not encrypted.

    Raises:
        ValueError: no key, or one of another algorithm.
        TypeError: it is encrypted.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - as above

    try:
        key = serialization.load_pem_private_key(content, password=None)
    except UnsupportedAlgorithm as error:
        raise ValueError("a key of another algorithm") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("a key of another algorithm")
    return key


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_KEY_FILE_BYTES_MAX + 1)
    if len(content) > _KEY_FILE_BYTES_MAX:
        raise ValueError("larger than any key")
    return content
