"""What keeps the operator running: work queue, object cache, leader lease, events, metrics, health, logs,
settings.
"""
