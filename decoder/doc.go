// Package decoder turns the frames of a pgoutput stream into messages, and does
// nothing else.
//
//	frame (payload of one XLogData) -> Decoder -> *Insert, *Commit, *Relation ...
//
// It knows all messages of protocol 1 to 4. The bytes of a change do not say
// whether a transaction id precedes it: that depends on whether a stream block
// is open, so a Decoder follows StreamStart and StreamStop and must see every
// frame of its stream. That is its only state.
//
// Messages are flyweights: a Decoder reuses them, and values alias the frame, so
// that a row costs no allocation. It never panics on any input, checks every
// count before it allocates, and refuses what the protocol does not allow,
// trailing bytes included, with a FormatError.
//
// It does not remember relations, compare tuples with them, or check the order
// of messages beyond the nesting of stream blocks: decoder/txn does.
package decoder
