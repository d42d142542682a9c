package decoder

import (
	"encoding/binary"
	"fmt"

	"pgapply/internal/lsn"
)

// wire builds a frame out of its fields, so that tests spell a message as the
// protocol's documentation does: a rune is one byte, numbers are big endian,
// a string ends with a zero byte, and a []byte stands for itself.
func wire(fields ...any) []byte {
	var frame []byte
	for _, field := range fields {
		switch field := field.(type) {
		case rune:
			frame = append(frame, byte(field))
		case uint8:
			frame = append(frame, field)
		case uint16:
			frame = binary.BigEndian.AppendUint16(frame, field)
		case uint32:
			frame = binary.BigEndian.AppendUint32(frame, field)
		case lsn.LSN:
			frame = binary.BigEndian.AppendUint64(frame, uint64(field))
		case Timestamp:
			frame = binary.BigEndian.AppendUint64(frame, uint64(field))
		case string:
			frame = append(append(frame, field...), 0)
		case []byte:
			frame = append(frame, field...)
		default:
			panic(fmt.Sprintf("wire cannot encode a %T", field))
		}
	}
	return frame
}

// encode is the inverse of Decode: the frame that the server sends for message,
// inside a stream block or outside of one.
func encode(message Message, inStream bool) []byte {
	switch m := message.(type) {
	case *Begin:
		return wire('B', m.FinalLSN, m.CommitTime, m.XID)
	case *Commit:
		return wire('C', uint8(0), m.CommitLSN, m.EndLSN, m.CommitTime)
	case *Origin:
		return wire('O', m.LSN, m.Name)
	case *Relation:
		frame := wire('R', encodeXID(m.XID, inStream), m.ID, encodeNamespace(m.Namespace), m.Name,
			uint8(m.ReplicaIdentity), uint16(len(m.Columns)))
		for _, column := range m.Columns {
			frame = append(frame, wire(encodeBits(column.Key), column.Name, column.TypeOID, uint32(column.TypeModifier))...)
		}
		return frame
	case *TypeMessage:
		return wire('Y', encodeXID(m.XID, inStream), m.OID, encodeNamespace(m.Namespace), m.Name)
	case *Insert:
		return wire('I', encodeXID(m.XID, inStream), m.RelationID, 'N', encodeTuple(m.New))
	case *Update:
		frame := wire('U', encodeXID(m.XID, inStream), m.RelationID)
		if m.OldKind != OldNone {
			frame = append(frame, wire(uint8(m.OldKind), encodeTuple(m.Old))...)
		}
		return append(frame, wire('N', encodeTuple(m.New))...)
	case *Delete:
		return wire('D', encodeXID(m.XID, inStream), m.RelationID, uint8(m.OldKind), encodeTuple(m.Old))
	case *Truncate:
		frame := wire('T', encodeXID(m.XID, inStream), uint32(len(m.RelationIDs)), encodeBits(m.Cascade, m.RestartIdentity))
		for _, id := range m.RelationIDs {
			frame = append(frame, wire(id)...)
		}
		return frame
	case *LogicalMessage:
		return wire('M', encodeXID(m.XID, inStream), encodeBits(m.Transactional), m.LSN,
			m.Prefix, uint8(0), uint32(len(m.Content)), m.Content)
	case *StreamStart:
		return wire('S', m.XID, encodeBits(m.First))
	case *StreamStop:
		return wire('E')
	case *StreamCommit:
		return wire('c', m.XID, uint8(0), m.CommitLSN, m.EndLSN, m.CommitTime)
	case *StreamAbort:
		if !m.HasPosition {
			return wire('A', m.XID, m.SubXID)
		}
		return wire('A', m.XID, m.SubXID, m.AbortLSN, m.AbortTime)
	case *BeginPrepare:
		return wire('b', m.PrepareLSN, m.EndLSN, m.PrepareTime, m.XID, m.GID)
	case *Prepare:
		return wire('P', uint8(0), m.PrepareLSN, m.EndLSN, m.PrepareTime, m.XID, m.GID)
	case *StreamPrepare:
		return wire('p', uint8(0), m.PrepareLSN, m.EndLSN, m.PrepareTime, m.XID, m.GID)
	case *CommitPrepared:
		return wire('K', uint8(0), m.CommitLSN, m.EndLSN, m.CommitTime, m.XID, m.GID)
	case *RollbackPrepared:
		return wire('r', uint8(0), m.PrepareEndLSN, m.RollbackEndLSN, m.PrepareTime, m.RollbackTime, m.XID, m.GID)
	}
	panic(fmt.Sprintf("encode does not know %T", message))
}

func encodeXID(xid uint32, inStream bool) []byte {
	if inStream {
		return wire(xid)
	}
	return nil
}

func encodeNamespace(name string) string {
	if name == "pg_catalog" {
		return ""
	}
	return name
}

// encodeBits sets bit i of a byte for the i-th true condition.
func encodeBits(conditions ...bool) (bits uint8) {
	for i, condition := range conditions {
		if condition {
			bits |= 1 << i
		}
	}
	return bits
}

func encodeTuple(tuple Tuple) []byte {
	frame := wire(uint16(len(tuple)))
	for _, value := range tuple {
		frame = append(frame, byte(value.Kind))
		if value.Kind == Text || value.Kind == Binary {
			frame = append(frame, wire(uint32(len(value.Data)), value.Data)...)
		}
	}
	return frame
}
