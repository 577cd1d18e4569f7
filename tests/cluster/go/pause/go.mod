module serving.dsv4.dev/cluster/pause

go 1.26.0
