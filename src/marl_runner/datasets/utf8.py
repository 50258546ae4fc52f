"""Text from the bytes of a file."""

from __future__ import annotations

import codecs

from marl_runner.errors import DataError


def decode_utf8(data: bytes, source: str) -> str:
    """The text of `data`, without a leading byte order mark, nothing replaced.

    Raises:
        DataError: The bytes are not UTF-8; the file and the offset in bytes from its start, from 0, are named.
    """
    text = data.removeprefix(codecs.BOM_UTF8)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start + len(data) - len(text)
        raise DataError(
            f"{source} is not UTF-8 text: byte 0x{data[offset]:02x} at byte offset {offset}; save the file as UTF-8"
        ) from error
