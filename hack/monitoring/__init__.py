"""Makes the monitoring files: rules, scrape objects, the dashboard. Entry point: hack/monitoring_files.py."""
