package decoder

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
)

// sample is a valid frame with the message it stands for.
type sample struct {
	name     string
	inStream bool // whether a stream block is open before the frame
	frame    []byte
	want     Message
}

// samples holds each message of protocol 1 to 4 in each of its forms.
func samples() []sample {
	const (
		moment = Timestamp(700_000_000_123_456)
		later  = moment + 1_000_000
		table  = uint32(16385)
	)
	longestGID := strings.Repeat("g", 199)
	text := func(value string) []byte { return wire('t', uint32(len(value)), []byte(value)) }
	binary := func(value ...byte) []byte { return wire('b', uint32(len(value)), value) }
	textValue := func(value string) Value { return Value{Kind: Text, Data: []byte(value)} }

	return []sample{
		{
			"begin", false,
			wire('B', lsn.LSN(0x16B374D848), moment, uint32(740)),
			&Begin{FinalLSN: 0x16B374D848, CommitTime: moment, XID: 740},
		},
		{
			"commit", false,
			wire('C', uint8(0), lsn.LSN(0x100), lsn.LSN(0x130), moment),
			&Commit{CommitLSN: 0x100, EndLSN: 0x130, CommitTime: moment},
		},
		{
			"origin", false,
			wire('O', lsn.LSN(0x55), "pg_16400"),
			&Origin{LSN: 0x55, Name: "pg_16400"},
		},
		{
			"origin without transaction id in a stream block", true,
			wire('O', lsn.LSN(0), "node a"),
			&Origin{Name: "node a"},
		},
		{
			"relation", false,
			wire('R', table, "public", "accounts", 'd', uint16(2),
				uint8(1), "id", uint32(23), uint32(0xFFFFFFFF),
				uint8(0), "name", uint32(1043), uint32(24)),
			&Relation{
				ID: table, Namespace: "public", Name: "accounts", ReplicaIdentity: IdentityDefault,
				Columns: []Column{
					{Key: true, Name: "id", TypeOID: 23, TypeModifier: -1},
					{Name: "name", TypeOID: 1043, TypeModifier: 24},
				},
			},
		},
		{
			"relation in a stream block", true,
			wire('R', uint32(741), table, "public", "accounts", 'f', uint16(1), uint8(1), "id", uint32(23), uint32(0xFFFFFFFF)),
			&Relation{
				XID: 741, ID: table, Namespace: "public", Name: "accounts", ReplicaIdentity: IdentityFull,
				Columns: []Column{{Key: true, Name: "id", TypeOID: 23, TypeModifier: -1}},
			},
		},
		{
			"relation without columns, in pg_catalog, identity nothing", false,
			wire('R', table, "", "empty", 'n', uint16(0)),
			&Relation{ID: table, Namespace: "pg_catalog", Name: "empty", ReplicaIdentity: IdentityNothing, Columns: []Column{}},
		},
		{
			"relation with identity index and hostile names", false,
			wire('R', table, "a.b", "\"x\"\n\xff", 'i', uint16(1), uint8(1), "", uint32(0), uint32(0)),
			&Relation{
				ID: table, Namespace: "a.b", Name: "\"x\"\n\xff", ReplicaIdentity: IdentityIndex,
				Columns: []Column{{Key: true}},
			},
		},
		{
			"type", false,
			wire('Y', uint32(16390), "public", "mood"),
			&TypeMessage{OID: 16390, Namespace: "public", Name: "mood"},
		},
		{
			"type in pg_catalog in a stream block", true,
			wire('Y', uint32(741), uint32(16391), "", "int4"),
			&TypeMessage{XID: 741, OID: 16391, Namespace: "pg_catalog", Name: "int4"},
		},
		{
			"insert of all kinds of values", false,
			wire('I', table, 'N', uint16(5), text("abc"), 'n', 'u', binary(0, 0, 0, 7), text("")),
			&Insert{RelationID: table, New: Tuple{
				textValue("abc"), {Kind: Null}, {Kind: Unchanged}, {Kind: Binary, Data: []byte{0, 0, 0, 7}}, {Kind: Text, Data: []byte{}},
			}},
		},
		{
			"insert without columns", false,
			wire('I', table, 'N', uint16(0)),
			&Insert{RelationID: table, New: Tuple{}},
		},
		{
			"insert in a stream block", true,
			wire('I', uint32(742), table, 'N', uint16(1), text("abc")),
			&Insert{XID: 742, RelationID: table, New: Tuple{textValue("abc")}},
		},
		{
			"update without an old tuple", false,
			wire('U', table, 'N', uint16(2), text("1"), 'u'),
			&Update{RelationID: table, New: Tuple{textValue("1"), {Kind: Unchanged}}},
		},
		{
			"update with an old key", false,
			wire('U', table, 'K', uint16(2), text("1"), 'n', 'N', uint16(2), text("2"), text("x")),
			&Update{
				RelationID: table, OldKind: OldKey,
				Old: Tuple{textValue("1"), {Kind: Null}},
				New: Tuple{textValue("2"), textValue("x")},
			},
		},
		{
			"update with an old row in a stream block", true,
			wire('U', uint32(742), table, 'O', uint16(1), text("1"), 'N', uint16(1), text("2")),
			&Update{
				XID: 742, RelationID: table, OldKind: OldFull,
				Old: Tuple{textValue("1")},
				New: Tuple{textValue("2")},
			},
		},
		{
			"update in a stream block", true,
			wire('U', uint32(742), table, 'N', uint16(1), text("2")),
			&Update{XID: 742, RelationID: table, New: Tuple{textValue("2")}},
		},
		{
			"delete by key", false,
			wire('D', table, 'K', uint16(2), text("1"), 'n'),
			&Delete{RelationID: table, OldKind: OldKey, Old: Tuple{textValue("1"), {Kind: Null}}},
		},
		{
			"delete by row in a stream block", true,
			wire('D', uint32(742), table, 'O', uint16(1), binary(9)),
			&Delete{XID: 742, RelationID: table, OldKind: OldFull, Old: Tuple{{Kind: Binary, Data: []byte{9}}}},
		},
		{
			"truncate", false,
			wire('T', uint32(1), uint8(0), table),
			&Truncate{RelationIDs: []uint32{table}},
		},
		{
			"truncate of two tables with all options in a stream block", true,
			wire('T', uint32(742), uint32(2), uint8(3), table, table+1),
			&Truncate{XID: 742, Cascade: true, RestartIdentity: true, RelationIDs: []uint32{table, table + 1}},
		},
		{
			"truncate cascade", false,
			wire('T', uint32(1), uint8(1), table),
			&Truncate{Cascade: true, RelationIDs: []uint32{table}},
		},
		{
			"truncate restart identity", false,
			wire('T', uint32(1), uint8(2), table),
			&Truncate{RestartIdentity: true, RelationIDs: []uint32{table}},
		},
		{
			"logical message, transactional", false,
			wire('M', uint8(1), lsn.LSN(0x77), "prefix", uint32(3), []byte("a\x00b")),
			&LogicalMessage{Transactional: true, LSN: 0x77, Prefix: []byte("prefix"), Content: []byte("a\x00b")},
		},
		{
			"logical message, not transactional and empty", false,
			wire('M', uint8(0), lsn.LSN(0x77), "", uint32(0)),
			&LogicalMessage{LSN: 0x77, Prefix: []byte{}, Content: []byte{}},
		},
		{
			"logical message in a stream block", true,
			wire('M', uint32(742), uint8(1), lsn.LSN(0x77), "p", uint32(1), []byte("x")),
			&LogicalMessage{XID: 742, Transactional: true, LSN: 0x77, Prefix: []byte("p"), Content: []byte("x")},
		},
		{
			"first stream start", false,
			wire('S', uint32(741), uint8(1)),
			&StreamStart{XID: 741, First: true},
		},
		{
			"stream start", false,
			wire('S', uint32(741), uint8(0)),
			&StreamStart{XID: 741},
		},
		{
			"stream stop", true,
			wire('E'),
			&StreamStop{},
		},
		{
			"stream commit", false,
			wire('c', uint32(741), uint8(0), lsn.LSN(0x200), lsn.LSN(0x230), moment),
			&StreamCommit{XID: 741, CommitLSN: 0x200, EndLSN: 0x230, CommitTime: moment},
		},
		{
			"stream abort", false,
			wire('A', uint32(741), uint32(742)),
			&StreamAbort{XID: 741, SubXID: 742},
		},
		{
			"stream abort with position", false,
			wire('A', uint32(741), uint32(741), lsn.LSN(0x240), moment),
			&StreamAbort{XID: 741, SubXID: 741, HasPosition: true, AbortLSN: 0x240, AbortTime: moment},
		},
		{
			"begin prepare", false,
			wire('b', lsn.LSN(0x300), lsn.LSN(0x330), moment, uint32(743), "gid"),
			&BeginPrepare{PrepareLSN: 0x300, EndLSN: 0x330, PrepareTime: moment, XID: 743, GID: "gid"},
		},
		{
			"prepare with the longest name", false,
			wire('P', uint8(0), lsn.LSN(0x300), lsn.LSN(0x330), moment, uint32(743), longestGID),
			&Prepare{PrepareLSN: 0x300, EndLSN: 0x330, PrepareTime: moment, XID: 743, GID: longestGID},
		},
		{
			"stream prepare", false,
			wire('p', uint8(0), lsn.LSN(0x300), lsn.LSN(0x330), moment, uint32(743), ""),
			&StreamPrepare{PrepareLSN: 0x300, EndLSN: 0x330, PrepareTime: moment, XID: 743},
		},
		{
			"commit prepared", false,
			wire('K', uint8(0), lsn.LSN(0x400), lsn.LSN(0x430), moment, uint32(743), "gid"),
			&CommitPrepared{CommitLSN: 0x400, EndLSN: 0x430, CommitTime: moment, XID: 743, GID: "gid"},
		},
		{
			"rollback prepared", false,
			wire('r', uint8(0), lsn.LSN(0x330), lsn.LSN(0x530), moment, later, uint32(743), "gid"),
			&RollbackPrepared{
				PrepareEndLSN: 0x330, RollbackEndLSN: 0x530, PrepareTime: moment, RollbackTime: later, XID: 743, GID: "gid",
			},
		},
	}
}

// decoderIn returns a decoder with a stream block open, or without.
func decoderIn(t testing.TB, inStream bool) *Decoder {
	t.Helper()
	decoder := new(Decoder)
	if inStream {
		_, err := decoder.Decode(wire('S', uint32(741), uint8(1)))
		require.NoError(t, err)
	}
	return decoder
}
