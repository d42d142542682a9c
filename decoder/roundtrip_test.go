package decoder

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"pgapply/internal/lsn"
)

// Any sequence of messages that the protocol allows is decoded to itself by one
// decoder, in stream blocks and between them.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var decoder Decoder
		inStream := false
		for range rapid.IntRange(1, 30).Draw(t, "messages") {
			want := drawMessage(t, inStream)
			got, err := decoder.Decode(encode(want, inStream))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(want, got))
			switch want.(type) {
			case *StreamStart:
				inStream = true
			case *StreamStop:
				inStream = false
			}
			require.Equal(t, inStream, decoder.InStream())
		}
	})
}

// drawMessage draws a message that may stand at this place.
func drawMessage(t *rapid.T, inStream bool) Message {
	var (
		bit       = rapid.Bool()
		anyXID    = rapid.Uint32Min(1)
		id        = rapid.Uint32()
		name      = rapid.StringMatching(`[^\x00]{0,12}`)
		gid       = rapid.StringMatching(`[ -~]{0,199}`)
		position  = rapid.Map(rapid.Uint64(), func(n uint64) lsn.LSN { return lsn.LSN(n) })
		isSet     = rapid.Map(rapid.Uint64Min(1), func(n uint64) lsn.LSN { return lsn.LSN(n) })
		timestamp = rapid.Map(rapid.Int64(), func(n int64) Timestamp { return Timestamp(n) })
		namespace = rapid.Map(name, func(name string) string {
			if name == "" {
				return "pg_catalog"
			}
			return name
		})
		data   = rapid.SliceOfN(rapid.Byte(), 0, 20)
		prefix = rapid.SliceOfN(rapid.ByteMin(1), 0, 20)
		value  = rapid.Custom(func(t *rapid.T) Value {
			value := Value{Kind: rapid.SampledFrom([]ValueKind{Null, Unchanged, Text, Binary}).Draw(t, "kind")}
			if value.Kind == Text || value.Kind == Binary {
				value.Data = data.Draw(t, "data")
			}
			return value
		})
		tuple  = rapid.Map(rapid.SliceOfN(value, 0, 12), func(values []Value) Tuple { return values })
		column = rapid.Custom(func(t *rapid.T) Column {
			return Column{
				Key: bit.Draw(t, "key"), Name: name.Draw(t, "name"),
				TypeOID: id.Draw(t, "type"), TypeModifier: rapid.Int32().Draw(t, "modifier"),
			}
		})
		columns  = rapid.SliceOfN(column, 0, 12)
		identity = rapid.SampledFrom([]ReplicaIdentity{IdentityDefault, IdentityNothing, IdentityFull, IdentityIndex})
		oldKind  = rapid.SampledFrom([]OldKind{OldKey, OldFull})
	)
	var xid uint32
	if inStream {
		xid = anyXID.Draw(t, "xid")
	}
	prepare := func() Prepare {
		return Prepare{isSet.Draw(t, "prepare"), isSet.Draw(t, "end"), timestamp.Draw(t, "time"), id.Draw(t, "xid"), gid.Draw(t, "gid")}
	}

	types := []Type{
		TypeBegin, TypeCommit, TypeOrigin, TypeRelation, TypeType, TypeInsert, TypeUpdate, TypeDelete, TypeTruncate,
		TypeLogicalMessage, TypeStreamCommit, TypeStreamAbort, TypeBeginPrepare, TypePrepare, TypeCommitPrepared,
		TypeRollbackPrepared, TypeStreamPrepare,
	}
	if inStream {
		types = append(types, TypeStreamStop)
	} else {
		types = append(types, TypeStreamStart)
	}
	switch rapid.SampledFrom(types).Draw(t, "type") {
	case TypeBegin:
		return &Begin{isSet.Draw(t, "final"), timestamp.Draw(t, "time"), id.Draw(t, "xid")}
	case TypeCommit:
		return &Commit{position.Draw(t, "commit"), position.Draw(t, "end"), timestamp.Draw(t, "time")}
	case TypeOrigin:
		return &Origin{position.Draw(t, "lsn"), name.Draw(t, "name")}
	case TypeRelation:
		return &Relation{
			xid, id.Draw(t, "id"), namespace.Draw(t, "namespace"), name.Draw(t, "name"),
			identity.Draw(t, "identity"), columns.Draw(t, "columns"),
		}
	case TypeType:
		return &TypeMessage{xid, id.Draw(t, "oid"), namespace.Draw(t, "namespace"), name.Draw(t, "name")}
	case TypeInsert:
		return &Insert{xid, id.Draw(t, "relation"), tuple.Draw(t, "new")}
	case TypeUpdate:
		update := &Update{XID: xid, RelationID: id.Draw(t, "relation"), New: tuple.Draw(t, "new")}
		if bit.Draw(t, "has old") {
			update.OldKind, update.Old = oldKind.Draw(t, "old kind"), tuple.Draw(t, "old")
		}
		return update
	case TypeDelete:
		return &Delete{xid, id.Draw(t, "relation"), oldKind.Draw(t, "old kind"), tuple.Draw(t, "old")}
	case TypeTruncate:
		return &Truncate{
			xid, bit.Draw(t, "cascade"), bit.Draw(t, "restart identity"),
			rapid.SliceOfN(id, 1, 5).Draw(t, "relations"),
		}
	case TypeLogicalMessage:
		return &LogicalMessage{
			xid, inStream || bit.Draw(t, "transactional"), position.Draw(t, "lsn"),
			prefix.Draw(t, "prefix"), data.Draw(t, "content"),
		}
	case TypeStreamStart:
		return &StreamStart{anyXID.Draw(t, "xid"), bit.Draw(t, "first")}
	case TypeStreamStop:
		return &StreamStop{}
	case TypeStreamCommit:
		return &StreamCommit{id.Draw(t, "xid"), position.Draw(t, "commit"), position.Draw(t, "end"), timestamp.Draw(t, "time")}
	case TypeStreamAbort:
		abort := &StreamAbort{XID: id.Draw(t, "xid"), SubXID: id.Draw(t, "subxid"), HasPosition: bit.Draw(t, "has position")}
		if abort.HasPosition {
			abort.AbortLSN, abort.AbortTime = position.Draw(t, "abort"), timestamp.Draw(t, "time")
		}
		return abort
	case TypeBeginPrepare:
		begin := BeginPrepare(prepare())
		return &begin
	case TypePrepare:
		prepare := prepare()
		return &prepare
	case TypeStreamPrepare:
		stream := StreamPrepare(prepare())
		return &stream
	case TypeCommitPrepared:
		return &CommitPrepared{isSet.Draw(t, "commit"), isSet.Draw(t, "end"), timestamp.Draw(t, "time"), id.Draw(t, "xid"), gid.Draw(t, "gid")}
	default:
		return &RollbackPrepared{
			isSet.Draw(t, "prepare end"), isSet.Draw(t, "rollback end"),
			timestamp.Draw(t, "prepare time"), timestamp.Draw(t, "rollback time"), id.Draw(t, "xid"), gid.Draw(t, "gid"),
		}
	}
}
