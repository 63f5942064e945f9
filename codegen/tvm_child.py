"""The child process that runs TVM: `python -m inferc.codegen.tvm_child < request.json`.

Invalid IR can crash TVM; in a process of its own a crash becomes an error message. Each function is
announced on stdout before it is compiled, so that the parent knows which one it was.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ANNOUNCEMENT = "lowering "


def compile_rows(text: str, name: str, output: str, target: dict[str, Any]) -> None:
    """Lower a row body and write its object file."""
    # tvm_ffi imports torch where it is installed: seconds, for conversions that are not used here.
    sys.modules["torch"] = None  # type: ignore[assignment]
    import tvm
    from tvm.tirx import transform

    from inferc.codegen.tvm_lower import lower
    from inferc.ir.parse import parse_func

    lanes = int(target["lanes"])
    asked = {"kind": "llvm", "opt-level": 3, "mcpu": target["cpu"]}
    asked |= {"mattr": target["features"]} if target["features"] else {}
    asked |= {"mtriple": target["triple"]} if target["triple"] else {}
    machine = tvm.target.Target(asked)
    module = lower(parse_func(text), name, lanes)
    with machine:
        for step in (
            transform.BindTarget(machine), transform.StmtSimplify(), transform.FlattenBuffer(),
            transform.VectorizeLoop(True), transform.UnrollLoop(), transform.StmtSimplify(),
            transform.LowerIntrin(),
        ):  # fmt: skip
            module = step(module)
        built = tvm.get_global_func("target.build.llvm")(module, machine)
    built.write_to_file(output, "o")


def main() -> int:
    """Serve the request on stdin."""
    request = json.load(sys.stdin)
    for item in request["functions"]:
        print(ANNOUNCEMENT + item["name"], flush=True)
        compile_rows(item["ir"], item["name"], item["output"], request["target"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
