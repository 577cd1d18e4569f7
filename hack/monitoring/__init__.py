"""Makes the monitoring files: recording and alerting rules, scrape objects, the dashboard. Run hack/monitoring_files.py."""
