"""At start: does the installed CRD know every field that this operator does?"""

from __future__ import annotations

import logging

from dsv4_operator.api.constants import GROUP, PLURAL, VERSION
from dsv4_operator.api.crd import custom_resource_definition
from dsv4_operator.kube.errors import ApiError, Forbidden
from dsv4_operator.kube.kinds import CUSTOM_RESOURCE_DEFINITION
from dsv4_operator.kube.port import KubeApi
from dsv4_operator.observe.schema import installed_schema, missing_fields

LOG = logging.getLogger(__name__)


async def find_pruned_fields(api: KubeApi) -> list[str]:
    """Paths that the installed CRD prunes, each logged; empty also when the CRD cannot be read.

    The operator never writes the CRD: that would take rights over every CRD's content, and Helm owns it.
    """
    name = f"{PLURAL}.{GROUP}"
    try:
        crd = await api.get(CUSTOM_RESOURCE_DEFINITION, None, name)
    except Forbidden:
        LOG.info("CRD %s may not be read here, so it is not compared with this operator's", name)
        return []
    except ApiError as error:
        LOG.warning("CRD %s could not be compared: %s", name, error)
        return []
    installed = installed_schema(crd, VERSION) if crd is not None else None
    if installed is None:
        LOG.error("CRD %s does not serve %s; install the CRD of this release (crds/)", name, VERSION)
        return []
    ours = installed_schema(custom_resource_definition(), VERSION) or {}
    missing = missing_fields(installed, ours)
    if missing:
        LOG.warning(
            "CRD %s is older than this operator: the API server drops these fields silently: %s; "
            "apply crds/ of this release",
            name,
            ", ".join(missing),
        )
    return missing
