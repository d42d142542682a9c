// Package operate is what an operator does around the engine: look at a
// subscription, and take it away.
//
//	ReadStatus   state and runner on the target + slot on the publisher ──► Report (text, JSON)
//	Cleanup      slot on the publisher, then origins, then state on the target
//
// Each call opens its own connections and closes them. The package does not
// print and does not ask: the command shows a Report or a Removal, and asks the
// operator before it sets Confirmed. Errors are *apply.Error and carry the class
// and the remedy.
package operate
