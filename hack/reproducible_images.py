"""Build product images twice from nothing and compare them, layer by layer: equal sources must give equal images.

    python hack/reproducible_images.py [NAME...]      operator, canary, router; about two minutes for all three

Prints the size of what each image adds to its base. Exit status 1 when two builds differ.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))

from localcluster.images import PRODUCT_IMAGES


def layers(archive: Path) -> dict[str, int]:
    """Digest of the configuration and of each layer -> bytes, in order, of a docker-archive."""
    with tarfile.open(archive) as file:
        member = file.extractfile("manifest.json")
        if member is None:
            raise ValueError(f"{archive}: manifest.json is not a file")
        manifest = json.load(member)[0]
        names = [manifest["Config"], *manifest["Layers"]]
        return {name: file.getmember(name).size for name in names}


def main(names: list[str]) -> int:
    """Compare the builds of the images named."""
    unknown = [name for name in names if name not in PRODUCT_IMAGES]
    if unknown:
        sys.stderr.write(f"no image {unknown[0]!r}; known: {', '.join(PRODUCT_IMAGES)}\n")
        return 2
    different = 0
    for name in names or ["operator", "canary", "router"]:
        builds = []
        for _ in range(2):
            archive = PRODUCT_IMAGES[name].build()
            builds.append(layers(archive))
            archive.unlink()
        same = list(builds[0]) == list(builds[1])
        different += not same
        _, _, *own = builds[0].values()
        sys.stdout.write(f"{name}: {'equal' if same else 'DIFFERENT'}, {sum(own) / 1e6:.0f} MB above the base\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
