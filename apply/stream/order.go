package stream

import (
	"fmt"

	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

// order is what holds of the positions in a stream, whatever the publisher does: it sends
// transactions in the order of their commits, and says in the frame of what ends one where
// in its log that ends. A stream that breaks this is not the publisher's: to go on with it
// would mean to apply a transaction twice, or to acknowledge one that has not come.
type order struct {
	// last is the end of the last transaction, and prepared that of the last PREPARE.
	last, prepared lsn.LSN
}

// PositionError says that a position in the stream contradicts what came before.
type PositionError struct{ Reason string }

func (e *PositionError) Error() string { return "protocol violation: " + e.Reason }

// transaction checks one that is complete; frame is the position of its last frame. What is
// prepared may be from long ago: a publisher sends it again in front of its COMMIT PREPARED.
func (o *order) transaction(t *txn.Transaction, frame lsn.LSN) error {
	switch {
	case t.EndLSN != frame:
		return violated("transaction %d ends at %s, and its last frame at %s", t.XID, t.EndLSN, frame)
	case t.EndLSN <= t.FinalLSN:
		return violated("transaction %d ends at %s, and its commit is at %s", t.XID, t.EndLSN, t.FinalLSN)
	case t.Kind == txn.Prepare && t.EndLSN == o.prepared:
		return violated("transaction %d, prepared at %s, came twice", t.XID, t.EndLSN)
	case t.Kind == txn.Prepare:
		o.prepared = t.EndLSN
		return nil
	case t.EndLSN <= o.last:
		return violated("transaction %d ends at %s, and came after one that ends at %s", t.XID, t.EndLSN, o.last)
	}
	o.last = t.EndLSN
	return nil
}

// keepalive checks one that arrives inside a transaction, whose commit was announced.
func (o *order) keepalive(position, announced lsn.LSN) error {
	if announced != 0 && position > announced {
		return violated("a keepalive at %s came before the end of the transaction that commits at %s", position, announced)
	}
	return nil
}

func violated(format string, arguments ...any) error {
	return &PositionError{Reason: fmt.Sprintf(format, arguments...)}
}
