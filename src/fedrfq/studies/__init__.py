"""Studies: grids of runs over axes and seeds, which give tables, figures and judged claims."""
