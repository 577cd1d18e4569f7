"""The object itself, and parsing one from the API server with errors that a user understands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsv4_operator.api.base import ApiModel, CelRule
from dsv4_operator.api.constants import MAX_NAME_LENGTH
from dsv4_operator.api.v1alpha1.problems import explain
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.api.v1alpha1.status import DSV4DeploymentStatus

_SERVICE_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


class ObjectMeta(BaseModel):
    """The part of metadata that the operator reads; everything else is ignored, not refused."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: Annotated[str, Field(alias="resourceVersion")] = ""
    deletion_timestamp: Annotated[str | None, Field(alias="deletionTimestamp")] = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class DSV4Deployment(ApiModel):
    """Prefill/decode-disaggregated DeepSeek-V4 serving on SGLang.

    Two engine roles, a router in front, and a canary beside every engine that proves the path from prefill over the
    KV transfer to decode before the pod gets traffic.
    """

    cel_rules = (
        CelRule(
            name="name-length",
            rule=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
            holds=lambda deployment: len(deployment.metadata.name) <= MAX_NAME_LENGTH,
            message=f"metadata.name is longer than {MAX_NAME_LENGTH} characters, and names of children add "
            "fingerprint and role to it within Kubernetes' 63; choose a shorter name",
        ),
        CelRule(
            name="name-fits-service",
            rule=f"self.metadata.name.matches('{_SERVICE_NAME}')",
            holds=lambda deployment: re.fullmatch(_SERVICE_NAME, deployment.metadata.name) is not None,
            message="a Service is named after the object, and such a name starts with a letter and has no dots; "
            "choose a metadata.name of lower-case letters, digits and '-'",
        ),
    )

    api_version: Literal["serving.dsv4.dev/v1alpha1"] = "serving.dsv4.dev/v1alpha1"
    """API group and version."""
    kind: Literal["DSV4Deployment"] = "DSV4Deployment"
    """Kind of the object."""
    metadata: ObjectMeta
    """Name, namespace and other metadata."""
    spec: DSV4DeploymentSpec
    """What the user wants."""
    status: DSV4DeploymentStatus = Field(default_factory=DSV4DeploymentStatus)
    """What the operator observes."""


class InvalidSpecError(ValueError):
    """The stored spec does not parse. `problems` holds (path, message), all of them."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{path}: {message}" for path, message in problems))


def parse_deployment(raw: Mapping[str, Any]) -> DSV4Deployment:
    """Parse an object as the API server stores it; status is not read, since nothing may depend on it.

    As strict as the API server: no text where a number belongs, and only the API's own spelling of field names.

    Raises:
        InvalidSpecError: with every problem, each with its field path, the value, what is wrong with it and what to do.
    """
    fields = {key: raw[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in raw}
    try:
        # JSON is what an object is; in this mode pydantic is strict about types and still takes enums from text.
        return DSV4Deployment.model_validate_json(
            json.dumps(fields, default=str), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InvalidSpecError([item for detail in details for item in explain(detail, DSV4Deployment)]) from None
