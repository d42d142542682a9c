package txn

import (
	"fmt"

	"pgapply/decoder"
)

// ProtocolError says that a message is well formed and cannot be what the
// publisher means: it stands where the protocol does not allow it, or
// contradicts what came before. Nothing that follows on the connection can be
// trusted; the remedy is to drop it and to start again from the last durable
// position.
type ProtocolError struct {
	Message decoder.Type
	// State says where in the stream the message arrived.
	State string
	// Reason is empty when the message is out of order.
	Reason string
}

// Error names the message, where it arrived and what is wrong.
func (e *ProtocolError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("protocol violation: unexpected %s message %s", e.Message, e.State)
	}
	return fmt.Sprintf("protocol violation: %s message %s: %s", e.Message, e.State, e.Reason)
}
