// Package suite names what is built from this module: Kubernetes' end-to-end tests. Its tools stand in go.mod.
package suite

import _ "k8s.io/kubernetes/test/e2e"
