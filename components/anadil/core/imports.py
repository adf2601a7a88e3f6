"""Modules that Python code imports, read without running it."""

import ast
from collections.abc import Iterator


def required_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a file, without the optional ones."""
    optional = {id(inner) for node in ast.walk(tree) if _is_optional(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in optional:
            yield node


def _is_optional(node: ast.AST) -> bool:
    if isinstance(node, ast.Try):
        return not any(isinstance(inner, ast.Raise) for each in node.handlers for inner in ast.walk(each))
    return isinstance(node, ast.If) and any(
        word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__main__")
    )
