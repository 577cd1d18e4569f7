"""Pure observation: live objects and canary reports become views, conditions and status."""
