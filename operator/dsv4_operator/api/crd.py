"""The CustomResourceDefinition of DSV4Deployment, generated from the models.

`python -m dsv4_operator.api.crd` writes it; with `--check` it fails and shows the difference when the file is stale.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any, Final

from dsv4_operator.api.constants import GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from dsv4_operator.api.schema import Schema, StructuralSchema, structural_schema
from dsv4_operator.api.v1alpha1 import ConditionType, DSV4Deployment

CRD_NAME: Final = f"{PLURAL}.{GROUP}"
DEFAULT_PATH: Final = Path(f"crds/{GROUP}_{PLURAL}.yaml")
MAX_BYTES: Final = 256 * 1024
"""Largest annotation of Kubernetes: client-side apply keeps the whole object in one."""

_HEADER: Final = "# Generated from the models of dsv4_operator.api by `make crds`. Do not edit.\n"
_WIDE: Final = 1


def object_schema() -> StructuralSchema:
    """The structural schema of the whole object, and the rules in it."""
    converted = structural_schema(DSV4Deployment, undefaulted=frozenset({"status"}))
    properties = converted.schema["properties"]
    # Kubernetes owns these three: it knows their schema and refuses any other statement about them.
    properties["apiVersion"] = {"description": properties["apiVersion"]["description"], "type": "string"}
    properties["kind"] = {"description": properties["kind"]["description"], "type": "string"}
    properties["metadata"] = {"type": "object"}
    properties["status"].pop("default", None)
    converted.schema["required"] = ["spec"]
    return converted


def printer_columns() -> list[dict[str, Any]]:
    """Columns of `kubectl get dsv4`; those of priority 1 appear with `-o wide`."""

    def condition(kind: ConditionType, key: str) -> str:
        return f'.status.conditions[?(@.type=="{kind.value}")].{key}'

    columns: list[dict[str, Any]] = [
        _column("Ready", condition(ConditionType.READY, "status"), "Whether requests reach a proven pair"),
        _column("Prefill", ".status.prefill.summary", "Prefill pods, ready of wanted"),
        _column("Decode", ".status.decode.summary", "Decode pods, ready of wanted"),
        _column("Index-K", ".spec.indexK.dtype", "Format of the sparse-attention index keys"),
        _column("HiCache", ".spec.hiCache.enabled", "Whether prefill keeps prefixes in host memory", kind="boolean"),
        _column("Canary", condition(ConditionType.CANARY_PASSING, "status"), "Whether all canaries pass"),
        _column("Age", ".metadata.creationTimestamp", "Time since creation", kind="date"),
        _column("Fingerprint", ".status.fingerprint", "KV fingerprint of the serving generation", priority=_WIDE),
        _column("Endpoint", ".status.endpoint", "URL of the stable Service", priority=_WIDE),
        _column("Message", condition(ConditionType.READY, "message"), "What holds Ready back", priority=_WIDE),
    ]
    return columns


def _column(name: str, path: str, description: str, *, kind: str = "string", priority: int = 0) -> dict[str, Any]:
    column = {"name": name, "type": kind, "description": description, "jsonPath": path}
    return column | ({"priority": priority} if priority else {})


def custom_resource_definition() -> dict[str, Any]:
    """The whole object, as `kubectl apply` takes it."""
    schema: Schema = object_schema().schema
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": printer_columns(),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def render() -> str:
    """The file's text; YAML with the keys in reading order, so that its history shows what changed."""
    import yaml  # noqa: PLC0415 - the models, and so everything that runs in a cluster, do without it

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def paragraphs(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, paragraphs)
    text: str = yaml.dump(custom_resource_definition(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
    if len(text.encode()) >= MAX_BYTES:
        raise ValueError(f"the CRD has {len(text.encode())} bytes; kubectl apply takes fewer than {MAX_BYTES}")
    return _HEADER + text


def stale(path: Path, text: str) -> str:
    """The difference between the file and what it should be; empty when there is none."""
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(
        present.splitlines(keepends=True), text.splitlines(keepends=True), str(path), f"{path} (generated)"
    )
    return "".join(lines)


def write_or_check(path: Path, text: str, *, check: bool, remedy: str) -> int:
    """Write the generated file, or with `check` compare it. Returns the exit code: 1 when it is stale."""
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return 0
    difference = stale(path, text)
    if difference:
        sys.stdout.write(difference)
        sys.stderr.write(f"{path} differs from the models; run {remedy}\n")
    return 1 if difference else 0


def main(arguments: list[str] | None = None) -> int:
    """Write or check the CRD file."""
    parser = argparse.ArgumentParser(prog="python -m dsv4_operator.api.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 and show the difference when stale")
    parser.add_argument("--out", type=Path, default=DEFAULT_PATH, help="file to write (default: %(default)s)")
    options = parser.parse_args(arguments)
    return write_or_check(options.out, render(), check=options.check, remedy="`python -m dsv4_operator.api.crd`")


if __name__ == "__main__":
    sys.exit(main())
