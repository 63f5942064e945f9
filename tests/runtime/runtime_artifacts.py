"""An artifact of the toy step library, written as the compiler writes one."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime_tokenizers import byte_level

from inferc.runtime.artifact import (
    CacheEntry,
    KvPlan,
    Limits,
    Manifest,
    MemoryPlan,
    ModelFacts,
    PackedTensor,
    PackedWeights,
    TargetEntry,
)
from inferc.runtime.artifact_writer import write_artifact
from inferc.runtime.host import host_machine

VOCAB = 259
WEIGHT = np.arange(3, 19, dtype=np.uint8)
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def toy_manifest(**changes: object) -> Manifest:
    manifest = Manifest(
        tool_version="0.1.0",
        model=ModelFacts("toy", "Toy", VOCAB, 8, 1, 64, 100, 400),
        tokens=byte_level().facts,
        targets=(TargetEntry("cpu:toy", "cpu", host_machine(), (), "cpu/step.so"),),
        limits=Limits(step_tokens=16, sequences=4, context_tokens=64),
        kv=KvPlan(4, "f32", 8, 32, (CacheEntry("layers.0", 1, 1, 1, None),)),
        memory=MemoryPlan(arena_bytes=64, weights_bytes=16),
        weights=PackedWeights(
            "weights/packed.safetensors",
            (PackedTensor("w", "n16", "u8", (16,), 64, 16, ("model.w",)),),
        ),
    )
    return replace(manifest, **changes)


def fill_toy(folder: Path, manifest: Manifest | None = None, abi: int = 1) -> Manifest:
    """Files of the artifact without the step library's machine code, unless a compiler is there."""
    (folder / "cpu").mkdir()
    (folder / "weights").mkdir()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    library, source = folder / "cpu/step.so", Path(__file__).with_name("toy_step.c")
    if compiler:
        flags = ["-O1", "-shared", "-fPIC", f"-DTOY_ABI={abi}"]
        command = [compiler, *flags, "-o", str(library), str(source)]
        subprocess.run(command, check=True)
    else:
        library.write_bytes(b"not a library")
    header = b"\0" * 64
    (folder / "weights/packed.safetensors").write_bytes(header + WEIGHT.tobytes())
    byte_level()._tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation.json").write_text(json.dumps({"do_sample": False, "top_k": 0}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return manifest or toy_manifest()


@pytest.fixture(scope="session")
def toy_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts") / "toy.inferc"
    write_artifact(folder, fill_toy)
    return folder
