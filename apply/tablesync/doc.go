// Package tablesync copies a set of tables from the publisher to the target as they were
// at one exported snapshot.
//
//	                 ┌─ job 1: TableReader ──► read ahead ──► COPY FROM, COMMIT
//	tables ──► parts ┼─ job 2: TableReader ──► read ahead ──► COPY FROM, COMMIT
//	                 └─ ...
//
// The bytes of COPY TO go into COPY FROM as they are: nothing here looks at a row. A
// table goes in one part, which is one transaction on the target, or, when it is large,
// in several that are ranges of its pages. Of a table that is published without columns
// only the number of rows is known, and made of the target's defaults.
//
// The package knows no subscription and no stream: which tables, on which snapshot, what
// their states are before and after, and what follows are decided above it. It tells a
// [Recorder] what happens, in time for a killed process to leave nothing in doubt:
//
//	Starting (durable) ──► clean ──► rows ──► Copied, in the same transaction as the rows
package tablesync
