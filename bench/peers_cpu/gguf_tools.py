"""GGUF files: what a token costs, and the same model in bf16."""

from __future__ import annotations

from pathlib import Path

from bench.peers_cpu.rows import Size


def size_of(path: Path) -> Size:
    """Bytes and operations of one token: of the embedding only if it is the head as well."""
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    if head == "output.weight":
        del tensors["token_embd.weight"]
    in_matrices = {n: int(t.n_elements) for n, t in tensors.items() if len(t.shape) > 1}
    flops = 2 * sum(in_matrices.values())
    weight_bytes = sum(int(tensor.n_bytes) for tensor in tensors.values())
    return Size(weight_bytes, flops, flops - 2 * in_matrices[head])


def write_bf16(source: Path, target: Path) -> None:
    """The model of `source` with every matrix in bf16: dequantised, rounded to nearest even."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            values = gguf.quantize(values, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, values, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
