package txn

import (
	"encoding/binary"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// wire writes the frames that a publisher would send. It inserts transaction
// ids into the contents of stream blocks, as the publisher does.
type wire struct{ inStream bool }

type frame []byte

func (f frame) u8(v byte) frame       { return append(f, v) }
func (f frame) u16(v int) frame       { return binary.BigEndian.AppendUint16(f, uint16(v)) }
func (f frame) u32(v uint32) frame    { return binary.BigEndian.AppendUint32(f, v) }
func (f frame) lsn(v lsn.LSN) frame   { return binary.BigEndian.AppendUint64(f, uint64(v)) }
func (f frame) text(v string) frame   { return append(append(f, v...), 0) }
func (f frame) bytes(v []byte) frame  { return append(f.u32(uint32(len(v))), v...) }
func (f frame) time(xid uint32) frame { return f.lsn(lsn.LSN(xid)) } // any value that can be told

func (w *wire) content(kind byte, xid uint32) frame {
	if w.inStream {
		return frame{kind}.u32(xid)
	}
	return frame{kind}
}

func (f frame) tuple(row []decoder.Value) frame {
	f = f.u16(len(row))
	for _, value := range row {
		f = f.u8(byte(value.Kind))
		if value.Kind == decoder.Text || value.Kind == decoder.Binary {
			f = f.bytes(value.Data)
		}
	}
	return f
}

func (w *wire) relation(xid uint32, r *decoder.Relation) frame {
	f := w.content('R', xid).u32(r.ID).text(r.Namespace).text(r.Name).u8(byte(r.ReplicaIdentity)).u16(len(r.Columns))
	for _, column := range r.Columns {
		flags := byte(0)
		if column.Key {
			flags = 1
		}
		f = f.u8(flags).text(column.Name).u32(column.TypeOID).u32(uint32(column.TypeModifier))
	}
	return f
}

func (w *wire) typeName(xid, oid uint32, namespace, name string) frame {
	return w.content('Y', xid).u32(oid).text(namespace).text(name)
}

func (w *wire) insert(xid, relation uint32, row []decoder.Value) frame {
	return w.content('I', xid).u32(relation).u8('N').tuple(row)
}

func (w *wire) update(xid, relation uint32, kind decoder.OldKind, old, row []decoder.Value) frame {
	f := w.content('U', xid).u32(relation)
	if kind != decoder.OldNone {
		f = f.u8(byte(kind)).tuple(old)
	}
	return f.u8('N').tuple(row)
}

func (w *wire) delete(xid, relation uint32, kind decoder.OldKind, old []decoder.Value) frame {
	return w.content('D', xid).u32(relation).u8(byte(kind)).tuple(old)
}

func (w *wire) truncate(xid uint32, flags byte, relations ...uint32) frame {
	f := w.content('T', xid).u32(uint32(len(relations))).u8(flags)
	for _, relation := range relations {
		f = f.u32(relation)
	}
	return f
}

// message is transactional if it has flag 1. One that is not carries no
// transaction id.
func (w *wire) message(xid uint32, flags byte, prefix, content string) frame {
	return w.content('M', xid).u8(flags).lsn(1).text(prefix).bytes([]byte(content))
}

func (w *wire) origin(name string) frame { return frame{'O'}.lsn(0).text(name) }

func (w *wire) begin(xid uint32, final lsn.LSN) frame {
	return frame{'B'}.lsn(final).time(xid).u32(xid)
}

func (w *wire) commit(xid uint32, final, end lsn.LSN) frame {
	return frame{'C'}.u8(0).lsn(final).lsn(end).time(xid)
}

func (w *wire) beginPrepare(xid uint32, final, end lsn.LSN, gid string) frame {
	return frame{'b'}.lsn(final).lsn(end).time(xid).u32(xid).text(gid)
}

func (w *wire) prepare(xid uint32, final, end lsn.LSN, gid string) frame {
	return frame{'P'}.u8(0).lsn(final).lsn(end).time(xid).u32(xid).text(gid)
}

func (w *wire) streamStart(xid uint32, first bool) frame {
	w.inStream = true
	if first {
		return frame{'S'}.u32(xid).u8(1)
	}
	return frame{'S'}.u32(xid).u8(0)
}

func (w *wire) streamStop() frame {
	w.inStream = false
	return frame{'E'}
}

func (w *wire) streamCommit(xid uint32, final, end lsn.LSN) frame {
	return frame{'c'}.u32(xid).u8(0).lsn(final).lsn(end).time(xid)
}

func (w *wire) streamPrepare(xid uint32, final, end lsn.LSN, gid string) frame {
	return frame{'p'}.u8(0).lsn(final).lsn(end).time(xid).u32(xid).text(gid)
}

func (w *wire) streamAbort(xid, subxid uint32) frame { return frame{'A'}.u32(xid).u32(subxid) }

// streamAbortAt is the form that streaming=parallel gets.
func (w *wire) streamAbortAt(xid, subxid uint32) frame {
	return w.streamAbort(xid, subxid).lsn(5).time(xid)
}

func (w *wire) commitPrepared(xid uint32, final, end lsn.LSN, gid string) frame {
	return frame{'K'}.u8(0).lsn(final).lsn(end).time(xid).u32(xid).text(gid)
}

func (w *wire) rollbackPrepared(xid uint32, prepareEnd, end lsn.LSN, gid string) frame {
	return frame{'r'}.u8(0).lsn(prepareEnd).lsn(end).time(xid).time(xid + 1).u32(xid).text(gid)
}

// text is a row of text values; "~" is null and "^" unchanged.
func text(values ...string) []decoder.Value {
	row := []decoder.Value{}
	for _, value := range values {
		switch value {
		case "~":
			row = append(row, decoder.Value{Kind: decoder.Null})
		case "^":
			row = append(row, decoder.Value{Kind: decoder.Unchanged})
		default:
			row = append(row, decoder.Value{Kind: decoder.Text, Data: []byte(value)})
		}
	}
	return row
}

// table describes a table with columns of type text. A name that ends with *
// is part of the key; one with :oid has that type.
func table(id uint32, name string, columns ...string) *decoder.Relation {
	r := &decoder.Relation{ID: id, Namespace: "public", Name: name, ReplicaIdentity: decoder.IdentityDefault}
	r.Columns = []decoder.Column{}
	for _, column := range columns {
		r.Columns = append(r.Columns, parseColumn(column))
	}
	return r
}
