"""dsv4ctl, also `kubectl dsv4`: what the operator would do, said without a cluster.

Needs only the extra `cli`. Modules are imported when their command runs, so that every command starts fast.
"""
