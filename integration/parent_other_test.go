//go:build !linux

package integration

import "os/exec"

// dieWithParent needs Linux, as most of these tests do.
func dieWithParent(*exec.Cmd) {}
