// Package source is the link to the publisher: one walsender session, first for
// commands and catalog queries, then for one stream of changes.
//
//	Connect -> Conn      identify, slots, publications (simple protocol only)
//	             |
//	             | StartStream
//	             v
//	publisher ==== w, k ====> Stream.Receive    one reader: the caller's goroutine
//	          <==== r ======= feedback          one writer: the stream's own goroutine
//	                             ^
//	                             Stream.Report  from any goroutine, never blocks
//
// Reader and writer are apart so that the publisher hears from us while the
// caller is busy and reads nothing. Frames leave in the order in which they
// arrived, keepalives among the data, so that a caller that queues them cannot
// acknowledge what still waits behind one.
//
// The package does not decode messages, does not decide what is durable, and
// does not reconnect: it says what happened (ClassOf) and leaves that to its caller.
package source
