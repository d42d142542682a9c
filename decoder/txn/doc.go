// Package txn turns the messages of one pgoutput stream into whole transactions.
//
//	            +-- ordinary  B .. C     b .. P ------------------+
//	frame ->Add-+                                                 +-> *Transaction -> Changes -> Release
//	            +-- streamed  S .. E  S .. E  A  S .. E  c or p --+
//	                               |
//	                             tape: page | chunks of memory | spool file
//	                               |
//	          Streams are told of an Open -> Follow -> Follower, on any goroutine
//
// A publisher may send several running transactions in interleaved blocks, take
// back parts of them (subtransactions that were rolled back) or all of it. The
// Assembler keeps each apart, refuses messages in an order that the protocol
// does not allow, and hands a transaction out when its commit or prepare
// arrives, in the publisher's commit order.
//
// The rows of a transaction are stored as the frames that they came in, and
// decoded again when they are replayed: that costs less than any other form. A
// Budget bounds their memory. Transactions that are not complete may fill half
// of it; what does not fit moves to spool files, the largest transaction first.
// Complete ones may fill the other half; beyond it, and while two of them have
// files, Budget.Wait holds the reader of the stream back.
//
// A streamed transaction may be read before it is complete: a Follower copies what
// has arrived, and is told to undo what the publisher rolls back. So that nobody
// need run ahead of a commit that the rows may rest on, each block notes how many
// transactions were complete when it began, and a Follower reads no block beyond
// the number that it is given. Streams hear when there is something new.
//
// Descriptions of tables and types are resolved while the frames arrive, with
// the version that was valid at that point, so that a replay needs no state.
//
// The package starts no goroutine, opens no file (it writes to the SpoolFile it
// is given), keeps nothing across connections, and does not know the target.
package txn
