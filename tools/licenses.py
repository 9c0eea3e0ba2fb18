#!/usr/bin/env python3
"""Prints the licences of all crates that are linked into `weft`, with their texts, for a package to carry."""
import json
import pathlib
import subprocess
import sys

TARGET = "x86_64-unknown-linux-gnu"
NAMES = ("LICEN", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT")


def main():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET,
               "--manifest-path", "crates/weft/Cargo.toml", "--no-default-features"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    dependencies = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    [root] = [package["id"] for package in packages.values() if package["name"] == "weftwork"]
    linked, waiting = set(), [root]
    while waiting:
        current = waiting.pop()
        if current in linked:
            continue
        linked.add(current)
        for dependency in dependencies[current]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    bearers = {}
    for package in sorted((packages[each] for each in linked), key=lambda package: package["name"]):
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license']}")
        folder = pathlib.Path(package["manifest_path"]).parent
        texts = [path for path in sorted(folder.iterdir()) if path.name.upper().startswith(NAMES) and path.is_file()]
        if not texts:
            print(f"{name}: no licence text in its package", file=sys.stderr)
        for path in texts:
            text = "\n".join(line.strip() for line in path.read_text(errors="replace").strip().splitlines())
            bearers.setdefault(text, []).append(name)
    for text, names in bearers.items():
        print(f"\n==== {', '.join(names)}\n\n{text}")


main()
