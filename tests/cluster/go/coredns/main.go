// Command coredns is CoreDNS with only the plugins that a local test cluster needs.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() {
	// Order of execution in the chain: the template, which refuses foreign names, comes after the cluster's zone.
	dnsserver.Directives = []string{"health", "ready", "errors", "cache", "kubernetes", "template"}
}

func main() {
	coremain.Run()
}
