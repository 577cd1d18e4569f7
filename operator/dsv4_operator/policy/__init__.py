"""Safety policy: which specs may run, with the reason and its source. Pure."""

from dsv4_operator.policy.evaluate import RULES, evaluate, refusals
from dsv4_operator.policy.finding import Action, Finding, Rule, Subject

__all__ = ["RULES", "Action", "Finding", "Rule", "Subject", "evaluate", "refusals"]
