"""The only wiring: builds every part, gives each its neighbours, runs and ends the process.

| module | what it does |
| --- | --- |
| process | from an accepted start to an exit status: order of start, signals, errors |
| router | one router's parts, wired |
| listener | the listening socket and the HTTP server on it |
| limits | file descriptors |
| keeper_thread | the lease keeper's own thread and loop |
| warden/ | the parent that outlives the router, and what the router tells it |
| exit_status | what the statuses of `narwhal-serve` are |
"""
