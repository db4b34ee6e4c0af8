"""`narwhal cluster drill`: faults on a cluster of its own, judged from outside.

| part | tells |
| --- | --- |
| rows | the table of faults: what is done, what is promised |
| faults | how each fault is made |
| stage | store, engines, routers, doors and load balancer of one row |
| machines | those processes, one by one |
| door | a TCP relay that can be shut or led to another server |
| prober | /ready of each router every 20 ms, and the instants that must not overlap |
| lease_watch | the lease record, by a connection of its own |
| traffic | clients with books of their own |
| run | one row, run several times |
| verdict | what did not hold |
| report | the table and the JSON report |
"""

from narwhal.cli.drill.command import main

__all__ = ["main"]
