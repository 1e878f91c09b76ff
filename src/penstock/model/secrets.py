"""Secrets in text that comes from elsewhere."""

from __future__ import annotations

import re

_SECRETS = re.compile(
    r"(?i)(password|passwd|pwd|secret|token)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&]+)|(://[^:/@\s]*:)([^@\s]+)(@)"
)


def without_secrets(text: str) -> str:
    """Return text from elsewhere (libpq, a DSN) with passwords taken out."""
    return _SECRETS.sub(lambda m: f"{m[1]}{m[2]}***" if m[1] else f"{m[4]}***{m[6]}", text)
