"""The API group `serving.dsv4.dev`: models, constants, and the generator of its CRD."""
