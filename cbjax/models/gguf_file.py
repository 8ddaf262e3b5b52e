"""Reading GGUF: metadata, and tensors one at a time.

The file is parsed here, since the `gguf` package's reader makes an array of every single token
(seconds for a real vocabulary, at each start); what is hard, dequantising, is left to that package.
"""

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies and how it is coded."""

    shape: tuple[int, ...]  # row-major: the file's dimensions reversed
    kind: gguf.GGMLQuantizationType
    start: int  # byte offset in the file


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, open for reading."""

    path: Path
    metadata: dict[str, Any] = field(repr=False)
    tensors: dict[str, GgufTensor] = field(repr=False)
    data: memoryview = field(repr=False)

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32, dequantised if need be.

        Raises:
            ValueError: it is coded in a way that the `gguf` package cannot read.
        """
        tensor = self.tensors[name]
        block, block_bytes = gguf.GGML_QUANT_SIZES[tensor.kind]
        count = int(np.prod(tensor.shape))
        size = count // block * block_bytes
        raw = np.frombuffer(self.data, np.uint8, size, tensor.start)
        if tensor.kind == gguf.GGMLQuantizationType.F32:
            return raw.view("<f4").reshape(tensor.shape)
        rows = raw.reshape(-1, size // (count // tensor.shape[-1]))
        if tensor.kind == gguf.GGMLQuantizationType.F16:
            return rows.view("<f2").reshape(tensor.shape).astype(np.float32)
        try:
            return np.asarray(dequantize(rows, tensor.kind), np.float32).reshape(tensor.shape)
        except NotImplementedError as error:
            raise ValueError(
                f"{self.path}: {name} is coded as {tensor.kind.name}, which cannot be read here; "
                "use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1 or a K-quant"
            ) from error


def open_gguf(path: Path) -> GgufFile:
    """Map a GGUF file into memory and read its head.

    Raises:
        ValueError: it is no GGUF file of version 2 or 3, or it is damaged or cut short.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24 or file.read(4) != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file; it does not begin with 'GGUF'")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return _parse(path, data)
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: the GGUF file is damaged or cut short ({error})") from error


def _parse(path: Path, data: memoryview) -> GgufFile:
    cursor = _Cursor(data, 4)
    version, num_tensors, num_fields = cursor.numbers("IQQ")
    if version not in (2, 3):
        raise ValueError(f"{path}: GGUF version {version} is not supported; versions 2 and 3 are")
    metadata = {cursor.string(): cursor.value(cursor.numbers("I")[0]) for _ in range(num_fields)}
    heads = [_tensor_head(cursor) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", 32))
    base = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, dims, code, offset in heads:
        try:
            kind = gguf.GGMLQuantizationType(code)
        except ValueError:
            raise ValueError(f"{path}: {name} has the unknown coding {code}") from None
        tensors[name] = GgufTensor(tuple(reversed(dims)), kind, base + offset)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        end = base + offset + int(np.prod(dims)) // block * block_bytes
        if end > len(data):
            raise ValueError(
                f"{path}: {name} ends at byte {end} of {len(data)}; the file is cut short"
            )
    return GgufFile(path, metadata, tensors, data)


def _tensor_head(cursor: "_Cursor") -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dims = cursor.numbers(f"{cursor.numbers('I')[0]}Q")
    code, offset = cursor.numbers("IQ")
    return name, dims, code, offset


@dataclass
class _Cursor:
    """A place in the file that moves on as values are read."""

    data: memoryview
    at: int

    def numbers(self, form: str) -> tuple:
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def string(self) -> str:
        (length,) = self.numbers("Q")
        (raw,) = self.numbers(f"{length}s")
        return raw.decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.numbers("IQ")
            if item in _SCALARS:
                return list(self.numbers(f"{count}{_SCALARS[item]}"))
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise struct.error(f"unknown kind of value {kind}")
        return self.numbers(_SCALARS[kind])[0]
