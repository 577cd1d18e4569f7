"""`dsv4ctl bisect`: which factor of a setting corrupts replies. Planner and decider are pure; runners do the work."""
