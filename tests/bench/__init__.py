"""`make bench`: what the router costs, one mode for each row of the budgets (docs/performance.md)."""
