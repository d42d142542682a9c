// Package invariant asserts what must always hold inside pgapply. Builds with
// the tag "invariants" (all tests) panic on a broken one; release builds pay
// nothing, so a check must have no effect that the program needs. Guard a check
// whose arguments are costly to compute with Enabled.
package invariant
