"""How the code reads, in figures, beside codebases that are pleasant to take over.

    python bench/style.py                                     our code, beside the recorded peers
    python bench/style.py --peer FedJAX=path/to/fedjax/fedjax  measure a peer as well
    python bench/style.py --out results/style/after.json       record it

Lines are counted without blanks, comments and docstrings where the table says "code". The peers'
figures in results/style/peers.json were measured by this script.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "results" / "style" / "peers.json"
LONG = 100  # characters of a line
RUN = 8  # equal code lines in a row that count as a duplicate
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
ROWS = {
    "modules": "modules",
    "module_median": "code lines of a module, median",
    "module_p90": "code lines of a module, 90th percentile",
    "function_median": "code lines of a function, median",
    "function_p90": "code lines of a function, 90th percentile",
    "function_max": "code lines of a function, longest",
    "packed": "assignments of several things, per 1,000 lines",
    "ternaries": "ternaries, per 1,000 lines",
    "long_share": f"lines over {LONG} characters, %",
    "comment_share": "comment lines, %",
    "duplicate_share": f"code lines in a run of {RUN} that stands in another file too, %",
    "same_class_names": "public class names used more than once",
    "many_parameters": "functions with more than five positional parameters",
    "lines": "lines that are not blank",
}


class Module:
    """One source file, and what is counted in it."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.lines = [line for line in text.splitlines() if line.strip()]
        self.tree = ast.parse(text)
        self.code = sorted(_code_lines(text) - _docstring_lines(self.tree))
        self.text = text.splitlines()

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def function_lengths(self) -> list[int]:
        """Code lines of each function, its signature included."""
        code = set(self.code)
        return [
            len(code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            for node in self.functions()
        ]

    def packed(self) -> int:
        return sum(
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
            for node in ast.walk(self.tree)
        )

    def ternaries(self) -> int:
        return sum(isinstance(node, ast.IfExp) for node in ast.walk(self.tree))

    def many_parameters(self) -> int:
        """Functions that take more than five arguments by position, `self` not counted."""
        found = 0
        for node in self.functions():
            names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            found += len([name for name in names if name not in ("self", "cls")]) > 5
        return found

    def public_classes(self) -> list[str]:
        classes = [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]
        return [name for name in classes if not name.startswith("_")]

    def runs(self) -> Iterator[tuple[tuple[str, ...], Sequence[int]]]:
        """Every run of code lines, with the numbers of its lines; white space is folded."""
        folded = [" ".join(self.text[number - 1].split()) for number in self.code]
        for start in range(len(folded) - RUN + 1):
            yield tuple(folded[start : start + RUN]), self.code[start : start + RUN]


def _code_lines(text: str) -> set[int]:
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return found


def _docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def measure(folder: Path) -> dict[str, float]:
    """The figures of all Python files below a folder, tests left out."""
    paths = [path for path in sorted(folder.rglob("*.py")) if not _is_test(path, folder)]
    modules = [Module(path) for path in paths]
    lines = sum(len(module.lines) for module in modules)
    lengths = [length for module in modules for length in module.function_lengths()]
    sizes = [len(module.code) for module in modules if module.code]
    names = Counter(name for module in modules for name in module.public_classes())
    thousand = max(lines, 1) / 1000
    comments = [line for module in modules for line in module.lines if _is_comment(line)]
    long_lines = [line for module in modules for line in module.lines if len(line) > LONG]
    return {
        "modules": len(modules),
        "module_median": statistics.median(sizes),
        "module_p90": _percentile(sizes),
        "function_median": statistics.median(lengths),
        "function_p90": _percentile(lengths),
        "function_max": max(lengths),
        "packed": round(sum(module.packed() for module in modules) / thousand, 1),
        "ternaries": round(sum(module.ternaries() for module in modules) / thousand, 1),
        "long_share": round(100 * len(long_lines) / lines, 1),
        "comment_share": round(100 * len(comments) / lines, 1),
        "duplicate_share": round(_duplicate_share(modules), 1),
        "same_class_names": sum(number > 1 for number in names.values()),
        "many_parameters": sum(module.many_parameters() for module in modules),
        "lines": lines,
    }


def _is_test(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return "tests" in parts or path.name.startswith("test_") or path.name.endswith("_test.py")


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _percentile(values: Sequence[int]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


def _duplicate_share(modules: Sequence[Module]) -> float:
    homes: dict[tuple[str, ...], set[int]] = {}
    for number, module in enumerate(modules):
        for run, _ in module.runs():
            homes.setdefault(run, set()).add(number)
    repeated = 0
    for module in modules:
        marked: set[int] = set()
        for run, lines in module.runs():
            if len(homes[run]) > 1:
                marked.update(lines)
        repeated += len(marked)
    return 100 * repeated / max(1, sum(len(module.code) for module in modules))


def show(columns: dict[str, dict[str, Any]]) -> Table:
    """A table with a row for each figure and a column for each codebase."""
    table = Table(title="How the code reads", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for key, label in ROWS.items():
        table.add_row(label, *(f"{column.get(key, '–'):,}" for column in columns.values()))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "src" / "fedrfq")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, help="write the figures of FOLDER as JSON")
    parser.add_argument("--record-peers", action="store_true", help="store the measured peers")
    options = parser.parse_args()
    own = measure(options.folder)
    peers: dict[str, dict[str, Any]] = {}
    if PEERS.is_file():
        peers = json.loads(PEERS.read_text(encoding="utf-8"))
    for peer in options.peer:
        name, _, folder = peer.partition("=")
        peers[name] = measure(Path(folder))
    Console().print(show({"fedrfq": own, **peers}))
    if options.record_peers:
        _write(PEERS, peers)
    if options.out:
        _write(options.out, own)


def _write(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
