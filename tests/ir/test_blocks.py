"""Block formats against the gguf package's decoders and encoders, bit for bit."""

import gguf
import numpy as np
import pytest

from inferc.ir.blocks import FORMATS, block_format, dequantize
from inferc.ir.blocks_encode import quantize, random_blocks
from inferc.ir.blocks_ggml import GGML_FORMATS

GGML = [fmt.name for fmt in GGML_FORMATS]
ENCODED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]


def ggml_type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.upper()]


@pytest.mark.parametrize("name", [*GGML, "mxfp4"])
def test_sizes_are_ggmls(name: str) -> None:
    fmt = FORMATS[name]
    assert (fmt.block_elements, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[ggml_type(name)]
    assert fmt.row_elements(fmt.row_bytes(1024)) == 1024


@pytest.mark.parametrize("name", GGML)
def test_dequantize_is_ggmls(name: str) -> None:
    raw = random_blocks(name, 37, 768, np.random.default_rng(1))
    ours, reference = dequantize(name, raw), gguf.dequantize(raw, ggml_type(name))
    assert ours.shape == (37, 768)
    np.testing.assert_array_equal(ours.view(np.uint32), reference.view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_chunks_and_leading_axes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(name, 12, 512, np.random.default_rng(2))
    whole = dequantize(name, raw)
    monkeypatch.setattr("inferc.ir.blocks._CHUNK_ELEMENTS", 1280)
    np.testing.assert_array_equal(dequantize(name, raw), whole)
    np.testing.assert_array_equal(dequantize(name, raw.reshape(3, 4, -1)), whole.reshape(3, 4, 512))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_permute_as_raw_bytes(name: str) -> None:
    rng = np.random.default_rng(3)
    raw, order = random_blocks(name, 16, 256, rng), rng.permutation(16)
    np.testing.assert_array_equal(dequantize(name, raw[order]), dequantize(name, raw)[order])


@pytest.mark.parametrize("name", ENCODED)
def test_quantize_is_ggmls(name: str) -> None:
    values = np.random.default_rng(4).standard_normal((9, 256)).astype(np.float32)
    values[3] = 0
    values[4, :32] = 1.5
    np.testing.assert_array_equal(quantize(name, values), gguf.quantize(values, ggml_type(name)))


@pytest.mark.parametrize("name", ENCODED)
def test_quantize_round_trip_error(name: str) -> None:
    values = np.random.default_rng(5).standard_normal((8, 512)).astype(np.float32)
    error = np.abs(dequantize(name, quantize(name, values)) - values).max()
    assert error < {"4": 0.6, "5": 0.3, "8": 0.03}[name[1]]


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="1000 elements is no whole number of q4_k blocks of 256"):
        block_format("q4_k").row_bytes(1000)
    with pytest.raises(ValueError, match="35 bytes is no whole number of q8_0 blocks"):
        dequantize("q8_0", np.zeros((1, 35), np.uint8))


def test_unknown_format_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"iq4_xs.*known: q4_0"):
        block_format("iq4_xs")
