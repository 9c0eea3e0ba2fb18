#!/usr/bin/env python3
"""Makes a registry of packaged crates, and beside it an empty program with the chapters of fiber's tutorial.

    tools/tutorial.py PACKAGES FOLDER

PACKAGES is what `cargo package --workspace` made; FOLDER gets `index`, a registry as a git repository, and `tutorial`.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys


def main():
    root, packages, folder = pathlib.Path(__file__).resolve().parents[1], *map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(folder, ignore_errors=True)
    index = folder / "index"
    shutil.copytree(packages / "tmp-registry/index", index)
    for entry in (path for path in index.rglob("*") if path.is_file()):
        entry.write_text("".join(json.dumps(own(json.loads(line))) + "\n" for line in entry.read_text().splitlines()))
    (index / "config.json").write_text(json.dumps({"dl": packages.resolve().as_uri() + "/{crate}-{version}.crate"}))
    git = ["git", "-C", index, "-c", "user.name=ci", "-c", "user.email=ci@localhost"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "packages"]):
        subprocess.run([*git, *command], check=True)

    source = (root / "crates/fiber/src/tutorial.rs").read_text()
    text = "\n".join(line[3:].removeprefix(" ") for line in source.splitlines() if line.startswith("//!"))
    chapters = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(chapters) >= 5, f"the tutorial has {len(chapters)} chapters with code"
    programs = folder / "tutorial/src/bin"
    programs.mkdir(parents=True)
    for number, chapter in enumerate(chapters, 1):
        lines = re.sub(r"^# ?", "", chapter, flags=re.MULTILINE)
        program = lines if "fn main()" in lines else f"fn main() {{\n{lines}}}\n"
        (programs / f"chapter_{number}.rs").write_text(program)
    manifest = '[package]\nname = "tutorial"\nedition = "2024"\n\n[workspace]\n'
    (folder / "tutorial/Cargo.toml").write_text(manifest)
    # Dependencies of the versions that are compiled already.
    shutil.copy(root / "Cargo.lock", folder / "tutorial")


def own(package):
    """The index entry: our crates come from this registry, all others from the public one."""
    for dependency in package["deps"]:
        if (dependency["package"] or dependency["name"]).startswith("weftwork"):
            dependency["registry"] = None
    return package


if __name__ == "__main__":
    main()
