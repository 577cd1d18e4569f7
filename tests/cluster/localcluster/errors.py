"""The one exception of this package: every failure a caller can see is a `ClusterError` with a remedy in its text."""


class ClusterError(Exception):
    """A cluster could not be built, started, reached or removed. The message says what and what to do."""
