"""Engines looked at from outside, one request at a time: what narwhal-profile and narwhal-check do.

Orchestration over the ports, as serving and monitor are; no file, no option, no screen.
"""
