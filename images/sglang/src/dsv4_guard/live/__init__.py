"""Live traffic: validity of tool calls, counted without keeping content."""
