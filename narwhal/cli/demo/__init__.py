"""`narwhal demo`: a router pair on one machine, a kill and a clean switch, seen by ordinary clients.

| part | tells |
| --- | --- |
| extras | what the demo needs beyond the router: a Redis server, the openai client |
| machines | child processes: started, watched, killed, always cleaned up |
| traffic | clients that stream chat completions and look for the owner themselves |
| watch | /ready of each router every 20 ms, documents of whoever owns |
| story | the run itself |
| report | the table, and the promises that decide the exit status |
"""

from narwhal.cli.demo.command import main

__all__ = ["main"]
