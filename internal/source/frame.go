package source

import (
	"encoding/binary"
	"fmt"
	"time"

	"pgapply/internal/lsn"
)

// FrameKind tells the two kinds of frames apart.
type FrameKind byte

// The kinds of frames (protocol.sgml, "Streaming Replication Protocol").
const (
	// Data frames carry one message of the output plugin.
	Data FrameKind = 'w'
	// Keepalive frames carry a position only.
	Keepalive FrameKind = 'k'
)

// Frame is one CopyData of the publisher.
type Frame struct {
	Kind FrameKind
	// WALStart is where the change is in the log, zero for messages that have no
	// place there, and for keepalives. It goes back between transactions: never
	// take it for progress.
	WALStart lsn.LSN
	// WALEnd of a keepalive is a point below which the publisher has sent every
	// commit. That of a data frame says nothing.
	//
	// The stream lets no position pass that lies beyond the end of the publisher's log.
	WALEnd lsn.LSN
	// ServerTime is when the publisher sent it, by its clock.
	ServerTime time.Time
	// ReplyRequested keepalives are answered by the stream itself.
	ReplyRequested bool
	// Payload of a data frame is the message. It is valid until the next Receive.
	Payload []byte
}

const (
	dataHeader      = 1 + 8 + 8 + 8
	keepaliveLength = 1 + 8 + 8 + 1
	statusLength    = 1 + 8 + 8 + 8 + 8 + 1

	// epoch is 2000-01-01, where PostgreSQL's clock starts, in microseconds of Unix time.
	epoch = 946684800 * 1_000_000
)

func parseFrame(data []byte) (Frame, error) {
	if len(data) == 0 {
		return Frame{}, &FrameError{Reason: "a frame is empty"}
	}
	switch kind := FrameKind(data[0]); kind {
	case Data:
		if len(data) < dataHeader {
			return Frame{}, &FrameError{Reason: fmt.Sprintf("a data frame has %d bytes, and at least %d are needed", len(data), dataHeader)}
		}
		return Frame{
			Kind:       kind,
			WALStart:   lsn.LSN(binary.BigEndian.Uint64(data[1:])),
			WALEnd:     lsn.LSN(binary.BigEndian.Uint64(data[9:])),
			ServerTime: serverTime(data[17:]),
			Payload:    data[dataHeader:],
		}, nil
	case Keepalive:
		if len(data) != keepaliveLength {
			return Frame{}, &FrameError{Reason: fmt.Sprintf("a keepalive has %d bytes instead of %d", len(data), keepaliveLength)}
		}
		return Frame{
			Kind:           kind,
			WALEnd:         lsn.LSN(binary.BigEndian.Uint64(data[1:])),
			ServerTime:     serverTime(data[9:]),
			ReplyRequested: data[17] != 0,
		}, nil
	default:
		return Frame{}, &FrameError{Reason: fmt.Sprintf("a frame is of unknown kind 0x%02x", byte(kind))}
	}
}

// names is the position in the log that a frame names.
func (f *Frame) names() lsn.LSN {
	if f.Kind == Keepalive {
		return f.WALEnd
	}
	return f.WALStart
}

func serverTime(data []byte) time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(data)) + epoch)
}

// appendStatus appends a standby status update in its CopyData message. A zero
// flushed position stays zero, which the server takes for "no news"
// (walsender.c, ProcessStandbyReplyMessage); any other value releases log up to it.
func appendStatus(message []byte, written lsn.LSN, position Position, now time.Time, replyRequested bool) []byte {
	message = append(message, 'd')
	message = binary.BigEndian.AppendUint32(message, 4+statusLength)
	message = append(message, 'r')
	message = binary.BigEndian.AppendUint64(message, uint64(written))
	message = binary.BigEndian.AppendUint64(message, uint64(position.Flushed))
	message = binary.BigEndian.AppendUint64(message, uint64(position.Applied))
	message = binary.BigEndian.AppendUint64(message, uint64(now.UnixMicro()-epoch))
	if replyRequested {
		return append(message, 1)
	}
	return append(message, 0)
}
