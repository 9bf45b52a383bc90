"""The floors of DESIGN section 2 that import-linter's contracts do not say: no circle between files."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_circle_between_files() -> None:
    # Imports inside functions and for type checking alone count: what knows one another belongs below both.
    graph = grimp.build_graph("specview", exclude_type_checking_imports=False, cache_dir=None)
    imports = {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle: {' <- '.join(error.args[1])}") from None
