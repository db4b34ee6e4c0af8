"""`narwhal cluster`: who owns, since when, and the orders that an operator may give.

| part | tells |
| --- | --- |
| command | command line, errors, exit statuses |
| target | where to look: the store's records or one router |
| document | the records as one JSON document |
| tables | that document for people |
| changes | the last changes of ownership, from the log and the routers |
| orders | yield and depose |
| timings | the relations of the lease's times and what follows from them |
"""

from narwhal.cli.cluster.command import main

__all__ = ["main"]
