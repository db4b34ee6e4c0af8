"""A small parent that outlives the router (cluster.md section 5).

| module | what it does |
| --- | --- |
| board | the memory that both processes see: heartbeat, tokens, counters |
| ward | the router's side: what it tells, and the end of its warden |
| parent | the warden: starts the router, watches it, settles what it leaves |
| supervisor | what a router tells of itself to whom it is run by: a warden, or a service manager |
"""
