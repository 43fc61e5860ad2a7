"""Who may include or import whom."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
CUDA, PYTHON = ROOT / "cuda", ROOT / "jax_gemm"
SOURCES = sorted(path for path in CUDA.rglob("*") if path.suffix in (".h", ".cuh", ".cc", ".cu"))

# A folder of cuda/ and what its files may include of cuda/, by pattern. Their own folder is always allowed.
SHARED = r"(gemm|configs|status|select)\.h"
FOLDERS = {
    "ptx": r"(?!)",
    "common": rf"ptx/.*|{SHARED}",
    "sm80": rf"ptx/.*|common/.*|{SHARED}",
    "sm90": rf"ptx/.*|common/.*|{SHARED}",
    # Host code: each family's launcher is all it knows of kernels.
    ".": r"[^/]+\.h|sm\d+/launch\.h",
}
STANDARD = {
    "ptx": r"cuda\w*\.h|cstdint",  # CUDA's headers only
    "sm80": r"cuda\w*\.h|\w+",
    "sm90": r"cuda\w*\.h|\w+",
    "common": r"cuda\w*\.h|\w+",
}

# A module of jax_gemm and those that it may import.
MODULES = {
    "__init__": {
        "_dot_general",
        "_explain",
        "_export",
        "_install",
        "_matmul",
        "_report",
        "_rules",
        "checkpoint_policies",
    },
    "__main__": {"", "_ffi", "_bench"},
    "_explain": {"_arguments", "_primitive", "_ffi", "_core"},
    "_export": {"_ffi"},
    "_report": {"_install", "_primitive", "_labels", "_ffi", "_core"},
    "_install": {"_primitive", "_labels", "_private", "_ffi"},
    "_matmul": {"_arguments", "_primitive", "_labels", "_ffi"},
    "_dot_general": {"_arguments", "_primitive", "_labels"},
    "_arguments": {"_primitive", "_labels"},
    "_rules": {"_primitive", "_partition", "_labels"},
    "checkpoint_policies": {"_primitive"},
    "_primitive": {"_partition", "_labels", "_private", "_ffi"},
    "_partition": {"_labels"},
    "_labels": set(),
    "_private": set(),
    "_ffi": {"_core"},
    "_bench": {"", "_cases", "_ffi", "_timing"},
    "_cases": set(),
    "_timing": set(),
}

pytestmark = pytest.mark.skipif(not SOURCES, reason="not a source tree")


def folder(path: pathlib.Path) -> str:
    return str(path.parent.relative_to(CUDA))


def includes(path: pathlib.Path) -> list[tuple[str, str]]:
    """Quoted includes as paths from cuda/, and bracketed ones: ('"' or '<', name)."""
    found = []
    for bracket, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)[">]', path.read_text(), re.MULTILINE):
        if bracket == '"' and not name.startswith("xla/"):
            near, above = (path.parent / name).resolve(), (CUDA / name).resolve()
            target = near if near.exists() else above
            assert target.exists(), f"{path}: {name} does not exist"
            found.append(('"', str(target.relative_to(CUDA.resolve()))))
        else:
            found.append(("<", name))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CUDA)))
def test_includes(path: pathlib.Path) -> None:
    here = folder(path)
    allowed = FOLDERS[here] if here == "." else rf"{FOLDERS[here]}|{here}/.*"
    for bracket, name in includes(path):
        if bracket == '"':
            assert re.fullmatch(allowed, name), f"{here} may not include {name}"
            continue
        if name.startswith("xla/"):
            assert path.name == "ffi.cc", "XLA's headers are included in ffi.cc only"
        elif name.startswith(("nanobind/", "Python.h")):
            assert path.name == "module.cc", "nanobind is included in module.cc only"
        elif here in STANDARD:
            assert re.fullmatch(STANDARD[here], name), f"{here} may not include <{name}>"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CUDA)))
def test_inline_assembly_lives_in_ptx(path: pathlib.Path) -> None:
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    if folder(path) != "ptx":
        assert not re.search(r"\b(asm|__asm__)\b", code)


def imports(path: pathlib.Path) -> set[str]:
    """The modules of the package that a module imports; "" is the package itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "jax_gemm":
            found |= {
                alias.name if (PYTHON / f"{alias.name}.py").exists() or alias.name == "_core" else ""
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax_gemm."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "jax_gemm"]
            found |= {name.partition(".")[2] for name in names}
    return found


@pytest.mark.parametrize("path", sorted(PYTHON.glob("*.py")), ids=lambda path: path.stem)
def test_imports(path: pathlib.Path) -> None:
    assert imports(path) <= MODULES[path.stem]
    private = re.findall(r"\bjax\._src\S*", path.read_text())
    assert path.stem == "_private" or not private, "JAX's private interfaces in _private.py only"
