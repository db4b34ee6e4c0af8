"""`narwhal drain`, `narwhal readmit` and `narwhal lifecycle`: planned maintenance of engines.

| part | tells |
| --- | --- |
| command | the three command lines, errors, exit statuses |
| options | their options |
| routers | who owns the fleet now, also after a takeover |
| waiting | orders given until they are done, and waited for |
| verdict | what a lifecycle document says of an order: pure |
| progress | what is told meanwhile, on a terminal and elsewhere |
| tables | the lifecycle document for people |
"""

from narwhal.cli.lifecycle.command import lifecycle as main

__all__ = ["main"]
