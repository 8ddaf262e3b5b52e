"""The GGUF reader agrees with the `gguf` package's own, value for value."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from cbjax.models.gguf_file import open_gguf

FIELDS = {
    "a.text": "naïve 日本",
    "a.flag": True,
    "a.texts": ["x", "", "🔥"],
    "a.numbers": [1, -2, 3],
    "a.floats": [0.5, -1.25],
}
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "mixed.gguf"
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in FIELDS.items():
        adders = {str: writer.add_string, bool: writer.add_bool, list: writer.add_array}
        adders[type(value)](key, value)
    writer.add_float32("a.float", 1e-5)
    writer.add_uint64("a.big", 2**40)
    for name in (*KINDS, *K_QUANTS):
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if name in K_QUANTS:  # no coder for these: any bytes with a sane scale stand for something
            raw = random.integers(0, 60, (3, 512 // block * size)).astype(np.uint8)
        else:
            raw = gguf.quants.quantize(random.standard_normal((3, 512)).astype(np.float32), kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_are_read_as_written(path: Path) -> None:
    found = open_gguf(path).metadata
    assert {key: found[key] for key in FIELDS} == FIELDS
    assert found["a.float"] == np.float32(1e-5) and found["a.big"] == 2**40
    theirs = gguf.GGUFReader(path)
    for key, value in found.items():
        assert theirs.fields[key].contents() == value


def test_tensors_are_read_as_the_package_reads_them(path: Path) -> None:
    file = open_gguf(path)
    for tensor in gguf.GGUFReader(path).tensors:
        found = file.read(tensor.name)
        assert found.shape == (3, 512) and found.dtype == np.float32
        assert np.array_equal(found, dequantize(tensor.data, tensor.tensor_type), equal_nan=True)
        assert np.unique(found).size > 10


def test_unreadable_codings_are_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "i.gguf", "llama")
    writer.add_tensor("whole", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="whole is coded as I32.*K-quant"):
        open_gguf(tmp_path / "i.gguf").read("whole")
