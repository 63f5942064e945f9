"""Reading, refusing and writing artifacts."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_artifacts import fill_toy, toy_manifest

from inferc.errors import ArtifactError
from inferc.runtime import artifact as artifact_module
from inferc.runtime import artifact_writer, host
from inferc.runtime.artifact import (
    Manifest,
    artifact_path,
    check_digests,
    read_manifest,
)
from inferc.runtime.artifact_writer import add_file, check_output, write_artifact
from inferc.runtime.schema import key_names
from inferc.runtime.target_choice import select_target


@pytest.fixture
def copy(toy_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy_artifact, tmp_path / "copy.inferc"))


def edit(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_round_trip(toy_artifact: Path) -> None:
    manifest = read_manifest(toy_artifact)
    target = replace(manifest.targets[0], sha256="")
    bare = replace(manifest, files={}, sha256="", targets=(target,))
    assert bare.to_json() == toy_manifest().to_json()
    assert manifest.targets[0].sha256 == manifest.files["cpu/step.so"]
    assert set(manifest.files) >= {"cpu/step.so", "tokenizer.json", "weights/packed.safetensors"}
    assert manifest.to_json() == (toy_artifact / "manifest.json").read_text()
    check_digests(toy_artifact, manifest)


def test_unknown_keys_are_ignored_unless_required(copy: Path) -> None:
    edit(copy, lambda data: data.update(novelty=1, required=["kv.caches.window_tokens"]))
    edit(copy, lambda data: data["kv"].update(novelty=1))
    assert read_manifest(copy).kv.page_tokens == 4
    edit(copy, lambda data: data.update(required=["kv.scales", "novelty"]))
    with pytest.raises(ArtifactError, match=r"requires kv\.scales, novelty, .* Upgrade inferc"):
        read_manifest(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema_version=2), "schema version 2, written by inferc 0.1.0"),
        (lambda d: d.update(schema_version="x"), "expected schema_version 1 or above, found 'x'"),
        (lambda d: d.pop("kv"), "manifest.json: expected the key 'kv', but it is missing"),
        (lambda d: d["kv"].update(page_tokens="4"), r"kv\.page_tokens: expected int, found str"),
        (lambda d: d["kv"].update(page_tokens=True), r"kv\.page_tokens: expected int, found bool"),
        (lambda d: d["kv"]["caches"][0].pop("k_dim"), r"kv\.caches\[0\]: expected the key 'k_dim'"),
        (lambda d: d["tokens"].update(eos=3), r"tokens\.eos: expected list, found int"),
        (lambda d: d.update(model=None), "model: expected dict, found null"),
    ],
)
def test_bad_manifests(copy: Path, change: Callable[[dict], object], message: str) -> None:
    edit(copy, change)
    with pytest.raises(ArtifactError, match=message):
        read_manifest(copy)


def test_not_an_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        read_manifest(tmp_path / "none")
    with pytest.raises(ArtifactError, match=r"has no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match="damaged, it is not JSON"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ArtifactError, match="expected a JSON object, found list"):
        read_manifest(tmp_path)
    with pytest.raises(ArtifactError, match="found a file"):
        read_manifest(tmp_path / "manifest.json")


def test_damage_is_found(copy: Path) -> None:
    manifest = read_manifest(copy)
    weights = copy / "weights/packed.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[70] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(ArtifactError, match=r"packed\.safetensors: the file is damaged"):
        check_digests(copy, manifest)
    weights.unlink()
    with pytest.raises(ArtifactError, match="lists this file, but it is missing"):
        check_digests(copy, manifest)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["memory"].update(arena_bytes=32),
        lambda data: data["weights"]["tensors"][0].update(nbytes=0),
        lambda data: data["tokens"].update(eos=[]),
        lambda data: data.update(novelty=1),
        lambda data: data["files"].popitem(),
    ],
)
def test_damage_of_the_manifest_is_found(copy: Path, change: Callable[[dict], object]) -> None:
    """A wrong size in it would be memory overwritten, not an error."""
    edit(copy, change)
    with pytest.raises(ArtifactError, match=r"manifest\.json: the file is damaged"):
        check_digests(copy, read_manifest(copy))
    with pytest.raises(ArtifactError, match=r"manifest\.json: the file is damaged"):
        add_file(copy, "verification.json", b"{}")
    assert not (copy / "verification.json").exists()


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("model", "vocab_size"), ("limits", "step_tokens"), ("limits", "sequences"),
        ("limits", "context_tokens"), ("kv", "page_tokens"), ("memory", "arena_bytes"),
    ],
)  # fmt: skip
def test_sizes_have_a_least_value(copy: Path, table: str, key: str) -> None:
    edit(copy, lambda data: data[table].update({key: -1}))
    with pytest.raises(ArtifactError, match=rf"{table}\.{key}: expected at least [01], found -1"):
        read_manifest(copy)


def test_paths_stay_inside(tmp_path: Path) -> None:
    for bad in ("../x", "/etc/passwd", "a/../../b"):
        with pytest.raises(ArtifactError, match="leads out"):
            artifact_path(tmp_path, bad)


def _targets(*targets: artifact_module.TargetEntry) -> Manifest:
    return toy_manifest(targets=targets)


def test_target_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = frozenset(map(host.canonical_feature, ["avx2", "fma", "avx512_vnni"]))
    monkeypatch.setattr(host, "host_isa", lambda: isa)
    (base,) = toy_manifest().targets
    strong = replace(base, name="cpu:strong", isa=("avx2", "amx_tile"))
    plain = replace(base, name="cpu:plain", isa=("avx2", "AVX512VNNI"))
    assert select_target(_targets(strong, plain)) is plain
    with pytest.raises(
        ArtifactError, match="cpu:strong needs the instruction sets amx_tile, which"
    ):
        select_target(_targets(strong))
    foreign = replace(base, machine="riscv64")
    with pytest.raises(ArtifactError, match="was compiled for riscv64, and this machine is"):
        select_target(_targets(foreign))
    with pytest.raises(ArtifactError, match="step ABI 9, and this runtime speaks 1"):
        select_target(_targets(replace(base, abi_version=9)))
    with pytest.raises(ArtifactError, match="is not a cpu target"):
        select_target(_targets(replace(base, kind="cuda")))
    with pytest.raises(ArtifactError, match="no compiled target"):
        select_target(_targets())


def test_the_most_capable_target_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listed; where the processor cannot be asked, the one that needs least."""
    (base,) = toy_manifest().targets
    isas = [("avx2", "avx512f", "avx512vnni"), ("avx2", "avx512f"), ("avx2",)]
    manifest = _targets(*(replace(base, name=f"cpu:{isa[-1]}", isa=isa) for isa in isas))
    for isa in isas:
        monkeypatch.setattr(host, "host_isa", lambda isa=isa: frozenset(isa))
        assert select_target(manifest).isa == isa
    monkeypatch.setattr(host, "host_isa", lambda: None)
    assert select_target(manifest).isa == ("avx2",)
    monkeypatch.setattr(host, "host_isa", lambda: frozenset({"sse2"}))
    with pytest.raises(ArtifactError, match="cpu:avx2 needs the instruction sets avx2"):
        select_target(manifest)


def test_cpuinfo() -> None:
    assert host.parse_cpuinfo("processor: 0\nflags\t\t: fpu avx512_bf16 abm\n") == frozenset(
        {"fpu", "avx512bf16", "lzcnt"}
    )
    assert host.parse_cpuinfo("Features : asimd asimddp i8mm\n") == frozenset(
        {"neon", "dotprod", "i8mm"}
    )
    assert host.parse_cpuinfo("nothing") is None
    assert 1 <= host.default_threads() <= (os.cpu_count() or 1)


def test_key_names() -> None:
    names = key_names(Manifest)
    assert {"kv.caches.window_tokens", "weights.tensors.offset_bytes", "tokens.add_bos"} <= names


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    for failure in (ValueError("x"), KeyboardInterrupt()):

        def fill(folder: Path, failure: BaseException = failure) -> Manifest:
            (folder / "big").write_bytes(b"x" * 1000)
            raise failure

        with pytest.raises(type(failure)):
            write_artifact(tmp_path / "a.inferc", fill)
        assert list(tmp_path.iterdir()) == []


def test_overwrite_only_when_asked_and_only_artifacts(copy: Path) -> None:
    before = (copy / "manifest.json").read_text()
    with pytest.raises(ArtifactError, match="exists already"):
        write_artifact(copy, fill_toy)

    def fail(folder: Path) -> Manifest:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_artifact(copy, fail, overwrite=True)
    assert (copy / "manifest.json").read_text() == before
    changed = replace(toy_manifest(), tool_version="9.9")
    write_artifact(copy, lambda folder: fill_toy(folder, changed), overwrite=True)
    assert read_manifest(copy).tool_version == "9.9"
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]
    (copy / "manifest.json").unlink()
    with pytest.raises(
        ArtifactError, match="is not an inferc artifact, so it will not be replaced"
    ):
        write_artifact(copy, fill_toy, overwrite=True)


def test_abandoned_partial_folders_are_swept(tmp_path: Path) -> None:
    dead, alive = (
        tmp_path / "a.inferc.partial-999999999",
        tmp_path / f"a.inferc.partial-{os.getppid()}",
    )
    dead.mkdir()
    alive.mkdir()
    write_artifact(tmp_path / "a.inferc", fill_toy)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.inferc", alive.name]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, r"the disk is full \(\d+ MiB free\)"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "cannot be written"),
    ],
)
def test_full_disk_and_read_only(tmp_path: Path, code: int, message: str) -> None:
    def fill(folder: Path) -> Manifest:
        raise OSError(code, os.strerror(code), str(folder / "weights"))

    with pytest.raises(ArtifactError, match=message):
        write_artifact(tmp_path / "a.inferc", fill)
    assert list(tmp_path.iterdir()) == []


def test_read_only_folder_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_writer.os, "access", lambda path, mode: False)
    with pytest.raises(ArtifactError, match="read-only"):
        check_output(tmp_path / "deep" / "a.inferc", overwrite=False)


def test_add_file_keeps_digests_true(copy: Path) -> None:
    add_file(copy, "verification.json", b"{}")
    manifest = read_manifest(copy)
    assert "verification.json" in manifest.files
    check_digests(copy, manifest)
