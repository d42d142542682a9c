//go:build invariants

package invariant

import "fmt"

// Enabled reports whether this build checks its invariants.
const Enabled = true

// Check panics with message when held is false.
func Check(held bool, message string, arguments ...any) {
	if !held {
		panic("invariant broken: " + fmt.Sprintf(message, arguments...))
	}
}
