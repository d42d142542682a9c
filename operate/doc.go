// Package operate is what an operator does around the engine: see whether it can
// start, look at a subscription, steer it, and take it away.
//
//	Check            facts of both ends ──► findings, each with its remedy
//	ReadStatus       state and runner on the target + slot on the publisher ──► Report
//	Pause, Resume    the state on the target, and whether the runner follows
//	Skip             the one transaction that cannot be applied
//	ListConflicts, ShowConflict, ClearConflicts
//	Sequences        their positions, from publisher to target
//	Verify           rows of both ends ──► what differs, and its repair (package verify)
//	Cutover          checks, writes stopped, last change, sequences, comparison, way back
//	Init             what a role lacks on the target: schema, functions, tables
//	Cleanup          slot on the publisher, then origins, then state on the target
//
// Each call opens its own connections and closes them. The package does not
// print and does not ask: results have a Text for people and stable JSON names for
// scripts, and the command asks the operator before it sets Confirmed. Errors are
// *apply.Error and carry the class and the remedy.
package operate
