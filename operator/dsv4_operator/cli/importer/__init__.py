"""`dsv4ctl import`: launch commands that people already run, made into a DSV4Deployment.

shell, arguments and sources read what is there; flags, environment and network say what each part becomes; pair
brings the two roles together. Nothing is dropped without a finding.
"""
