"""Data sets, scores, tables, plots and reports of the simulator. Pure."""
