"""The GGUF reader: what it reads, and every way in which a file can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from inferc.errors import CompileError
from inferc.frontend.gguf_file import is_gguf, read_gguf
from inferc.ir.blocks_encode import random_blocks
from inferc.ir.blocks_ggml import GGML_FORMATS

ALIGNMENT = 32


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None], **options: object) -> Path:
    writer = gguf.GGUFWriter(path, "llama", **options)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def two_tensors(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("a.weight", np.arange(24, dtype=np.float32).reshape(3, 8))
    writer.add_tensor("b.weight", np.ones((2, 4), np.float16))


def refusal(path: Path) -> str:
    with pytest.raises(CompileError) as info:
        read_gguf(path)
    assert str(path.name) in str(info.value)
    return str(info.value)


def header(
    *, version: int = 3, tensors: bytes = b"", tensor_count: int = 0, metadata: bytes = b"",
    entry_count: int = 0, order: str = "<",
) -> bytes:  # fmt: skip
    counts = struct.pack(f"{order}IQQ", version, tensor_count, entry_count)
    return b"GGUF" + counts + metadata + tensors


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def info(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def file_of(path: Path, content: bytes, data_bytes: int = 0) -> Path:
    padded = content + b"\0" * (-len(content) % ALIGNMENT) + b"\0" * data_bytes
    path.write_bytes(padded)
    return path


def test_all_metadata_types(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_uint8("k.u8", 200)
        writer.add_int8("k.i8", -5)
        writer.add_uint16("k.u16", 60000)
        writer.add_int16("k.i16", -30000)
        writer.add_uint32("k.u32", 4_000_000_000)
        writer.add_int32("k.i32", -2_000_000_000)
        writer.add_uint64("k.u64", 1 << 60)
        writer.add_int64("k.i64", -(1 << 60))
        writer.add_float32("k.f32", 0.5)
        writer.add_float64("k.f64", 0.1)
        writer.add_bool("k.bool", True)
        writer.add_string("k.string", "grün ✓")
        writer.add_array("k.numbers", [1, 2, 3])
        writer.add_array("k.strings", ["a", "", "ß"])
        writer.add_array("k.bools", [True, False])

    metadata = read_gguf(write(tmp_path / "m.gguf", fill)).metadata
    scalars = {key[2:]: value for key, value in metadata.items() if not hasattr(value, "shape")}
    assert scalars == {
        "neral.architecture": "llama",
        "u8": 200, "i8": -5, "u16": 60000, "i16": -30000, "u32": 4_000_000_000,
        "i32": -2_000_000_000, "u64": 1 << 60, "i64": -(1 << 60), "f32": 0.5, "f64": 0.1,
        "bool": True, "string": "grün ✓", "strings": ["a", "", "ß"],
    }  # fmt: skip
    np.testing.assert_array_equal(metadata["k.numbers"], [1, 2, 3])
    np.testing.assert_array_equal(metadata["k.bools"], [True, False])


def test_deeply_nested_arrays_are_refused(tmp_path: Path) -> None:
    value = struct.pack("<IQ", 9, 1) * 2000 + struct.pack("<IQ", 4, 0)
    path = file_of(tmp_path / "m.gguf", header(metadata=entry("k", 9, value), entry_count=1))
    assert "k nests arrays too deeply" in refusal(path)


def test_nested_arrays(tmp_path: Path) -> None:
    inner = struct.pack("<IQ", 4, 2) + struct.pack("<2I", 7, 8)
    outer = struct.pack("<IQ", 9, 2) + inner + inner
    path = file_of(tmp_path / "m.gguf", header(metadata=entry("k", 9, outer), entry_count=1))
    np.testing.assert_array_equal(np.array(read_gguf(path).metadata["k"]), [[7, 8], [7, 8]])


@pytest.mark.parametrize("name", [*(fmt.name for fmt in GGML_FORMATS), "mxfp4"])
def test_block_types(name: str, tmp_path: Path) -> None:
    raw = random_blocks(name, 4, 512, np.random.default_rng(0))
    kind = gguf.GGMLQuantizationType[name.upper()]
    path = write(tmp_path / "m.gguf", lambda w: w.add_tensor("t.weight", raw, raw_dtype=kind))
    tensor = read_gguf(path).tensors["t.weight"]
    assert (tensor.dtype, tensor.shape, tensor.is_blocks) == (name, (4, 512), True)
    np.testing.assert_array_equal(tensor.read(), raw)
    np.testing.assert_array_equal(tensor.read_float32(), gguf.dequantize(raw, kind))


def test_dense_types(tmp_path: Path) -> None:
    bits = np.array([[0x3F80, 0xC000]], np.uint16)

    def fill(writer: gguf.GGUFWriter) -> None:
        two_tensors(writer)
        bf16 = gguf.GGMLQuantizationType.BF16
        writer.add_tensor("c.weight", bits.view(np.uint8), raw_dtype=bf16)

    tensors = read_gguf(write(tmp_path / "m.gguf", fill)).tensors
    assert [t.dtype for t in tensors.values()] == ["f32", "f16", "bf16"]
    np.testing.assert_array_equal(tensors["a.weight"].read()[2], np.arange(16, 24))
    np.testing.assert_array_equal(tensors["c.weight"].read_float32(), [[1, -2]])


def test_release_keeps_the_values(tmp_path: Path) -> None:
    tensor = read_gguf(write(tmp_path / "m.gguf", two_tensors)).tensors["a.weight"]
    before = tensor.read_float32()
    tensor.release()
    np.testing.assert_array_equal(tensor.read(), before)


def test_other_alignment(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(256)
        two_tensors(writer)

    file = read_gguf(write(tmp_path / "m.gguf", fill))
    np.testing.assert_array_equal(file.tensors["b.weight"].read(), np.ones((2, 4)))


@pytest.mark.parametrize("keep", [3, 20, 60, 200, -1])
def test_truncated_anywhere(keep: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", two_tensors)
    size = path.stat().st_size - (ALIGNMENT - 16)  # the file ends with padding
    path.write_bytes(path.read_bytes()[: keep % size])
    message = refusal(path)
    assert "truncated" in message or "no GGUF file" in message


def test_truncated_data_names_the_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", two_tensors)
    path.write_bytes(path.read_bytes()[:-24])
    assert "cut off: b.weight" in refusal(path)


def test_count_beyond_the_file_is_refused_at_once(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf", header(tensor_count=1 << 60))
    assert "truncated" in refusal(path)


def test_string_array_beyond_the_file(tmp_path: Path) -> None:
    value = entry("k", 9, struct.pack("<IQ", 8, 1 << 50))
    path = file_of(tmp_path / "m.gguf", header(metadata=value, entry_count=1))
    assert "truncated" in refusal(path)


def test_empty_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    assert "is empty" in refusal(tmp_path / "empty.gguf")
    assert "No such file" in refusal(tmp_path / "missing.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + b"\0" * 60, "no GGUF file"),
        (b"lmgg" + b"\0" * 60, "a file from before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (header(version=1), "version 1.*Convert the model again"),
        (header(version=9), "version 9.*A newer inferc"),
        (header(order=">"), "big-endian"),
    ],
)
def test_other_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf", content)
    with pytest.raises(CompileError, match=message):
        read_gguf(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([info("a", (4, 8)), info("a", (4, 8), offset=128)], "two tensors called a"),
        ([info("a", (4, 8), offset=4)], "a lies at offset 4.*alignment 32"),
        ([info("a", (4, 8)), info("b", (4, 8), offset=64)], "a and b overlap"),
        ([info("a", (4, 33), kind=8)], "tensor a.*33 elements is no whole number of q8_0"),
        ([info("a", (2, 2, 2, 2, 2))], "a has 5 axes"),
        (
            [info("blk.0.x", (1, 256), kind=23), info("y", (1, 32), kind=99)],
            r"blk.0.x \(IQ4_XS\), y \(unknown type 99\).*Supported: F32",
        ),
    ],
)
def test_wrong_tensor_tables(tensors: list[bytes], message: str, tmp_path: Path) -> None:
    content = header(tensors=b"".join(tensors), tensor_count=len(tensors))
    path = file_of(tmp_path / "m.gguf", content, data_bytes=4096)
    with pytest.raises(CompileError, match=message):
        read_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([entry("k", 4, b"\1\0\0\0")] * 2, "metadata key k twice"),
        ([entry("k", 77, b"\0" * 8)], "k has the unknown type 77"),
        ([entry("general.alignment", 4, struct.pack("<I", 48))], "48, not a power of two"),
        ([text("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe"], "no UTF-8"),
    ],
)
def test_wrong_metadata(metadata: list[bytes], message: str, tmp_path: Path) -> None:
    content = header(metadata=b"".join(metadata), entry_count=len(metadata))
    with pytest.raises(CompileError, match=message):
        read_gguf(file_of(tmp_path / "m.gguf", content))


def test_scalar_and_empty_tensors(tmp_path: Path) -> None:
    tensors = [info("a", (0, 8)), info("b", ())]
    content = header(tensors=b"".join(tensors), tensor_count=2)
    found = read_gguf(file_of(tmp_path / "m.gguf", content, data_bytes=32)).tensors
    assert found["a"].read().shape == (0, 8)
    assert found["b"].read().shape == ()


def test_damaged_headers_are_refused_or_read(tmp_path: Path) -> None:
    """Whatever bytes change, the outcome is a file or a CompileError, never another exception."""
    good = write(tmp_path / "m.gguf", two_tensors).read_bytes()
    rng, path = np.random.default_rng(0), tmp_path / "damaged.gguf"
    for _ in range(500):
        content = bytearray(good)
        for at in rng.integers(0, len(good), 3):
            content[at] = rng.choice([0, 1, 8, 9, 255, int(rng.integers(256))])
        path.write_bytes(content)
        try:
            for tensor in read_gguf(path).tensors.values():
                if tensor.readable:
                    tensor.read()
        except CompileError as error:
            assert "damaged.gguf" in str(error)


# Split files


def split(folder: Path) -> Path:
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=1)
    two_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "m-00001-of-00002.gguf"


def test_split_files_are_joined_from_any_part(tmp_path: Path) -> None:
    first = split(tmp_path)
    for path in (first, tmp_path / "m-00002-of-00002.gguf"):
        file = read_gguf(path)
        assert list(file.tensors) == ["a.weight", "b.weight"]
        assert file.architecture == "llama"


def test_missing_part_is_named(tmp_path: Path) -> None:
    first = split(tmp_path)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    assert "missing: m-00002-of-00002.gguf" in refusal(first)


def test_renamed_part_is_refused(tmp_path: Path) -> None:
    renamed = split(tmp_path).rename(tmp_path / "other.gguf")
    assert "NAME-00001-of-00002.gguf" in refusal(renamed)


def test_swapped_parts_are_refused(tmp_path: Path) -> None:
    first, second = split(tmp_path), tmp_path / "m-00002-of-00002.gguf"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(CompileError, match="mixed up"):
        read_gguf(first)


def test_is_gguf(tmp_path: Path) -> None:
    assert is_gguf(write(tmp_path / "m.gguf", two_tensors))
    (tmp_path / "x").write_bytes(b"GG")
    assert not is_gguf(tmp_path / "x")
    assert not is_gguf(tmp_path)
