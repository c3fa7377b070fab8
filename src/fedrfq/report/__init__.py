"""Reports: a self-contained HTML page of one or more runs, figures as PNG, data as CSV."""
