"""Version v1alpha1 of the API, as pydantic models: the source of the CRD, the docs and the operator's own parsing."""

from dsv4_operator.api.v1alpha1.conditions import Condition, ConditionType, Reason
from dsv4_operator.api.v1alpha1.deployment import DSV4Deployment, ObjectMeta, parse_deployment
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.api.v1alpha1.status import DSV4DeploymentStatus

__all__ = [
    "Condition",
    "ConditionType",
    "DSV4Deployment",
    "DSV4DeploymentSpec",
    "DSV4DeploymentStatus",
    "ObjectMeta",
    "Reason",
    "parse_deployment",
]
