"""The figures of the comparison: for each a chart, and the table with its exact numbers."""
