"""Sizes that follow from a role's fields."""

from __future__ import annotations

from dsv4_operator.api.v1alpha1.roles import RoleSpec


def tensor_size(role: RoleSpec) -> int:
    """Tensor-parallel size: as given, else all GPUs of all nodes of one engine."""
    return role.tensor
