"""What a person did wrong, and how every error is told: on one line."""

from __future__ import annotations


class InputError(Exception):
    """An option, a file or a variable that cannot be used. The message gives the value and the remedy."""


_LONGEST = 2000  # characters


def one_line(text: str) -> str:
    """The text on one line of bearable length, without characters that would move a terminal's cursor."""
    line = "; ".join(" ".join(part.split()) for part in text.splitlines() if part.strip())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
