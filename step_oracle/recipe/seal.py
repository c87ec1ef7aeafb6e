"""What this user's own verifications wrote down, told from what anybody could have written: a keyed digest."""

from __future__ import annotations

import hashlib
import hmac
import os
import pathlib
import secrets

KEY_BYTES = 32


def key_path() -> pathlib.Path:
    """Under the user's state directory (XDG_STATE_HOME, ~/.local/state without it)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".local" / "state"
    return root / "step-oracle" / "checkpoints.key"


def _key(make: bool) -> bytes | None:
    path = key_path()
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(secrets.token_bytes(KEY_BYTES))
            os.fsync(f.fileno())
        try:
            os.link(partial, path)  # the first of two that begin at once
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    try:
        status = path.stat()
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ValueError(f"{path} can be read or written by others, so that it seals nothing: delete it")
    if len(data) != KEY_BYTES:
        raise ValueError(f"{path} has {len(data)} bytes and is no key of this version: delete it")
    return data


def _of(key: bytes, text: str) -> str:
    from step_oracle import __version__

    return hmac.new(key, f"step-oracle {__version__} checkpoints\0{text}".encode(), hashlib.sha256).hexdigest()


def seal(text: str) -> str:
    key = _key(make=True)
    assert key is not None
    return _of(key, text)


def is_sealed(text: str, by: object) -> bool:
    key = _key(make=False)
    return key is not None and isinstance(by, str) and hmac.compare_digest(_of(key, text).encode(), by.encode())
