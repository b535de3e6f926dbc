"""Writes docs/cli.md and docs/tables.md from the code. A test checks that they are current."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from zerotrace.cli import COMMANDS
from zerotrace.cli import main as command_line
from zerotrace.schema import TABLES

DOCS = Path(__file__).resolve().parents[1] / "docs"


def cli_reference() -> str:
    """The help of every command, as a terminal of 100 columns shows it."""
    parts = ["# Command line", "", "Written by `python tools/reference.py` from the commands' own help.", ""]
    for words in ([], *([name] for name in COMMANDS)):
        shown = CliRunner().invoke(command_line, [*words, "--help"], prog_name="zerotrace", terminal_width=100)
        parts += [f"## {' '.join(['zerotrace', *words])}", "", "```", shown.output.rstrip(), "```", ""]
    return "\n".join(parts)


def tables_reference() -> str:
    """Every column of every table."""
    parts = ["# Tables", "", "Written by `python tools/reference.py` from `zerotrace/schema.py`.", ""]
    for table in TABLES:
        parts += [
            f"## {table.name}",
            "",
            table.doc,
            "",
            f"Sorted by {', '.join(f'`{key}`' for key in table.sort_by)}.",
            "",
        ]
        parts += ["| column | type | null | meaning |", "|---|---|---|---|"]
        for column in table.columns:
            kind = "string" if "dictionary" in str(column.type) else str(column.type)
            meaning = column.doc.replace("|", "\\|")
            parts.append(f"| `{column.name}` | {kind} | {'yes' if column.nullable else ''} | {meaning} |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(cli_reference(), encoding="utf-8")
    (DOCS / "tables.md").write_text(tables_reference(), encoding="utf-8")
