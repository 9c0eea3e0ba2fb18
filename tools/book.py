#!/usr/bin/env python3
"""Lays out the repository's pages as an mdBook in FOLDER. Pages keep their paths; the files that they link to are copied.

    tools/book.py FOLDER
"""
import os
import pathlib
import re
import shutil
import sys

# A list is indented below the page before it.
PARTS = {
    "Manuals": ["docs/serve.md", "docs/cache.md", "docs/load.md", "docs/lab.md", "docs/engines.md", "docs/scale-out.md"],
    "Build on it": ["docs/your-own-server.md", "docs/fiber/*.md", "crates/README.md", "docs/netstack-conformance.md"],
    "Figures": ["docs/performance.md", "docs/cache-eviction.md", "results/README.md", ["docs/experiments/*.md"]],
    "The project": ["ARCHITECTURE.md", "docs/adding-an-engine.md", "docs/testing.md", "docs/glossary.md", "fuzz/README.md",
                    "CONTRIBUTING.md", "SECURITY.md", "RELEASE.md", "CHANGELOG.md"],
}
LINK = re.compile(r"(?<!`)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def main():
    root, book = pathlib.Path(__file__).resolve().parents[1], pathlib.Path(sys.argv[1])
    shutil.rmtree(book, ignore_errors=True)
    pages, summary = [root / "README.md"], ["[weftwork in 60 seconds](README.md)"]
    for part, globs in PARTS.items():
        summary.append(f"# {part}")
        for glob in globs:
            indent, glob = ("  ", glob[0]) if isinstance(glob, list) else ("", glob)
            for page in sorted(root.glob(glob)):
                pages.append(page)
                heading = re.search(r"^# (.*)", page.read_text(), re.M)[1]
                summary.append(f"{indent}- [{heading}]({page.relative_to(root)})")
    write(book / "src/SUMMARY.md", "\n".join(summary) + "\n")
    for page in pages:
        text = LINK.sub(lambda link, page=page: bring(link, page, pages, root, book / "src"), page.read_text())
        write(book / "src" / page.relative_to(root), text)
    shutil.copy(root / "docs/book.toml", book)


def bring(link, page, pages, root, src):
    """Rewrites a link for the book. Pictures are copied, other files are copied as text; a link to a folder becomes its text."""
    target = pathlib.Path(os.path.normpath(page.parent / link[2]))
    if target in pages:
        # mdBook writes each README as index.html, but does not change links to it.
        return link[0].replace("README.md", "index.html")
    if not target.is_file():
        return link[1]
    ending = "" if target.suffix == ".svg" else ".txt"
    copy = src / f"{target.relative_to(root)}{ending}"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(target, copy)
    return f"[{link[1]}]({link[2]}{ending})"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
