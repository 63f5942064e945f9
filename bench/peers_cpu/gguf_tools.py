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


def convert(source: Path, target: Path, kind: str) -> None:
    """The same model with every matrix as `kind` (a GGML type), from its dequantised values.

    Vectors become float32. `target` appears when it is whole.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32")
        stored = gguf.GGMLQuantizationType[kind] if values.ndim > 1 else None
        data = values if stored is None else gguf.quantize(values, stored)
        writer.add_tensor(tensor.name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)
