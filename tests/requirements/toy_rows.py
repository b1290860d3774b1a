"""Rows of the tests' own, as the TOML files that a catalogue is loaded from."""

from __future__ import annotations

from pathlib import Path

GROUP = '[[group]]\nid = "XX-ONE"\ntitle = "First things"\n'
GOOD = {
    "id": '"XX-ONE-001"',
    "oracle": '"spec"',
    "level": '"MUST"',
    "statement": '"The server answers."',
    "source": '"A document, a section"',
    "observe": '"black box"',
}


def row_toml(**changes: str | None) -> str:
    """A good row as TOML, with keys changed, added, or (``None``) taken away."""
    keys = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return "[[requirement]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


def written(folder: Path, **files: str) -> Path:
    """The folder, with one TOML file per keyword."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder
