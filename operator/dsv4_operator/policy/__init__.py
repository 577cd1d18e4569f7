"""Safety policy: which specs may run, with the reason and its source. Pure."""

from dsv4_operator.policy.evaluate import RULES, RULES_BY_ID, evaluate, refusals
from dsv4_operator.policy.finding import Action, Finding, Rule
from dsv4_operator.policy.subject import Subject

__all__ = ["RULES", "RULES_BY_ID", "Action", "Finding", "Rule", "Subject", "evaluate", "refusals"]
