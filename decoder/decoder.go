package decoder

// Decoder decodes the frames of one stream. The zero value is ready to use. It
// is not safe for concurrent use.
type Decoder struct {
	inStream bool
}

// InStream tells whether a stream block is open after the last frame.
func (d *Decoder) InStream() bool { return d.inStream }

// Reset makes the decoder ready for the first frame of a new connection.
func (d *Decoder) Reset() { *d = Decoder{} }

// Decode decodes the frame of one message.
func (d *Decoder) Decode(frame []byte) (Message, error) {
	return nil, &FormatError{Reason: "empty frame"}
}
