package decoder

import "fmt"

// FormatError says that a frame is not a well-formed message of the stream so
// far. What follows on the same connection cannot be trusted: the remedy is to
// drop the connection and start again from the last durable position. It quotes
// no contents of rows.
type FormatError struct {
	Type   Type   // zero for an empty frame or a zero byte
	Offset int    // in bytes from the start of the frame, where the offending field starts
	Reason string // lower case, without punctuation at its end
}

// Error names message, place and reason.
func (e *FormatError) Error() string {
	if e.Type == 0 {
		return "malformed pgoutput message: " + e.Reason
	}
	return fmt.Sprintf("malformed pgoutput %s message, byte %d: %s", e.Type, e.Offset, e.Reason)
}
