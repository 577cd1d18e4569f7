"""Which images a deployment uses: the spec's, else the operator's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec


@dataclass(frozen=True, slots=True)
class ImageDefaults:
    """Images from the operator's settings; None where the administrator set none."""

    engine: str | None = None
    canary: str | None = None
    router: str | None = None


@dataclass(frozen=True, slots=True)
class Images:
    """Images of one deployment; None where neither spec nor operator gives one."""

    engine: str | None
    canary: str | None
    router: str | None


def resolve_images(spec: DSV4DeploymentSpec, defaults: ImageDefaults) -> Images:
    """The spec's images, with the operator's defaults where it has none."""
    return Images(
        engine=spec.engine.image or defaults.engine,
        canary=spec.canary.image or defaults.canary,
        router=spec.router.image or defaults.router,
    )
