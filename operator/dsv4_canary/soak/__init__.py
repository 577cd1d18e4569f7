"""Soak harness: many concurrent agent sessions against one endpoint, every reply classified, honest counts.

Answers one question about a deployment: does it damage tool calls under load, and how often? Works against any
OpenAI-compatible endpoint; knows neither Kubernetes nor the operator.
"""
