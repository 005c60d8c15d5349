"""The client of browsers as one file: what the tool joins, what it refuses, and what npm packs."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from tools import bundle

ROOT = Path(__file__).resolve().parents[3]
WEB = ROOT / "src/millstream/web"
NODE, NPM = shutil.which("node"), shutil.which("npm")
NAMES = bundle.exports_of((WEB / "client/client.js").read_text())


def modules(folder: Path, **sources: str) -> Path:
    """Write modules by name."""
    for name, source in sources.items():
        (folder / f"{name}.js").write_text(source)
    return folder


def run(script: str) -> str:
    assert NODE is not None
    ran = subprocess.run(
        [NODE, "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_each_module_comes_once_and_after_its_imports(tmp_path: Path) -> None:
    folder = modules(
        tmp_path,
        a='import { c } from "./c.js";\nexport const a = c + 1;\n',
        b='import { a } from "./a.js";\nimport { c } from "./c.js";\n'
        "export { a };\nexport async function b() { return a + c; }\n",
        c="export const c = 1;\n",
    )
    assert bundle.in_order(folder, "b.js") == ["c.js", "a.js", "b.js"]
    assert bundle.exports_of((folder / "b.js").read_text()) == ["b", "a"]
    text = bundle.as_module(folder, "b.js", "")
    assert text.count("const c = 1;") == 1
    assert text.endswith("\nexport { b, a };\n")
    assert "import" not in text.replace(bundle.NOTE, "")


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        ({"a": 'import { b } from "./b.js";\n', "b": 'import { a } from "./a.js";\n'}, "export"),
        (
            {
                "a": 'import { b } from "./b.js";\nexport const a = 1;\n',
                "b": 'import { a } from "./a.js";\nexport const b = 1;\n',
            },
            "a.js → b.js → a.js",
        ),
        (
            {"a": 'import { b } from "./b.js";\nconst b = 1;\n', "b": "export const b = 1;\n"},
            "b is",
        ),
        ({"a": "export default 1;\n"}, "export default 1"),
        ({"a": 'import x from "./b.js";\n'}, "import x"),
        ({"a": 'const x = await import("./b.js");\n'}, r"import\("),
    ],
)
def test_a_form_that_is_not_joined_is_an_error(
    tmp_path: Path, sources: dict[str, str], reason: str
) -> None:
    with pytest.raises(bundle.NotJoined, match=reason):
        bundle.as_module(modules(tmp_path, **sources), "a.js", "")


@pytest.mark.skipif(NODE is None, reason="there is no node here")
def test_both_forms_of_the_client_export_the_same_names() -> None:
    module, script = WEB / "millstream.js", WEB / "millstream.global.js"
    keys = f"import * as client from {json.dumps(module.as_uri())};\n"
    assert json.loads(run(keys + "console.log(JSON.stringify(Object.keys(client)))")) == sorted(
        NAMES
    )
    evaluated = (
        'import { readFileSync } from "node:fs"; import vm from "node:vm";\n'
        f"const context = {{}}; vm.runInNewContext(readFileSync({json.dumps(str(script))}, 'utf8'), context);\n"
        "console.log(JSON.stringify([Object.keys(context), Object.keys(context.millstream)]))"
    )
    assert json.loads(run(evaluated)) == [["millstream"], NAMES]


def test_the_package_has_the_version_of_the_project() -> None:
    package = json.loads((ROOT / "web/package.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert package["version"] == project["version"]
    assert package["license"] == project["license"]


def test_the_types_name_every_export() -> None:
    types = (WEB / "millstream.d.ts").read_text()
    for name in NAMES:
        assert f"export class {name}" in types or f"export function {name}" in types, name


@pytest.mark.skipif(NPM is None, reason="there is no npm here")
def test_npm_packs_the_files_that_the_server_sends(tmp_path: Path) -> None:
    assert NPM is not None
    shutil.copytree(WEB, tmp_path / "src/millstream/web")
    shutil.copytree(
        ROOT / "web",
        tmp_path / "web",
        ignore=shutil.ignore_patterns("node_modules", "millstream.*", "LICENSE"),
    )
    shutil.copy(ROOT / "LICENSE", tmp_path)
    ran = subprocess.run(
        [NPM, "pack", "--silent", "--offline", "--cache", str(tmp_path / "cache")],
        cwd=tmp_path / "web",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with tarfile.open(tmp_path / "web" / ran.stdout.strip()) as packed:
        names = {name.removeprefix("package/") for name in packed.getnames()}
        package = json.loads((ROOT / "web/package.json").read_text())
        assert names == {*package["files"], "package.json", "README.md", "LICENSE"}
        for name in ("millstream.js", "millstream.global.js", "millstream.d.ts"):
            file = packed.extractfile(f"package/{name}")
            assert file is not None
            assert file.read() == (WEB / name).read_bytes()
