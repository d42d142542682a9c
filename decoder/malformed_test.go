package decoder

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
)

func TestMalformedFrames(t *testing.T) {
	const (
		moment = Timestamp(1)
		table  = uint32(16385)
		xid    = uint32(743)
	)
	longGID := strings.Repeat("g", 200)

	for _, test := range []struct {
		name     string
		inStream bool
		frame    []byte
		want     string // without the common prefix
	}{
		{"nil frame", false, nil, "message: the frame is empty"},
		{"empty frame", false, []byte{}, "message: the frame is empty"},
		{"unknown type", false, wire('z', uint32(1)), "'z' message, byte 0: unknown message type"},
		{"zero type", false, wire(uint8(0)), "message: unknown message type"},

		{"begin without position", false, wire('B', lsn.LSN(0), moment, xid), "BEGIN message, byte 1: final LSN is not set"},
		{"begin cut", false, wire('B', lsn.LSN(1), moment), "BEGIN message, byte 17: transaction id needs 4 bytes and 0 are left"},
		{"commit with flags", false, wire('C', uint8(1), lsn.LSN(1), lsn.LSN(2), moment), "COMMIT message, byte 1: flags 0x01 contain unknown bits"},
		{"origin without end of name", false, wire('O', lsn.LSN(1), []byte("node")), "ORIGIN message, byte 9: origin name has no terminating zero byte"},

		{"relation with a key flag of 2", false, wire('R', table, "s", "t", 'd', uint16(1), uint8(2), "id", uint32(23), uint32(0)), "RELATION message, byte 12: flags 0x02 contain unknown bits"},
		{"relation with unknown identity", false, wire('R', table, "s", "t", 'x', uint16(0)), "RELATION message, byte 9: unknown replica identity 0x78"},
		{"relation with too many columns", false, wire('R', table, "s", "t", 'd', uint16(1665)), "RELATION message, byte 10: 1665 columns exceed the server's limit of 1664"},
		{"relation with more columns than bytes", false, wire('R', table, "s", "t", 'd', uint16(1664), make([]byte, 16639)), "RELATION message, byte 10: 1664 columns cannot be in the 16639 bytes that are left"},
		{"relation with endless namespace", false, wire('R', table, []byte("s")), "RELATION message, byte 5: namespace has no terminating zero byte"},
		{"relation with zero transaction id", true, wire('R', uint32(0), table, "s", "t", 'd', uint16(0)), "RELATION message, byte 1: transaction id is zero"},
		{"relation of a stream outside of one", false, wire('R', xid, table, "s", "t", 'd', uint16(0)), "RELATION message, byte 7: unknown replica identity 0x40"},
		{"type without name", false, wire('Y', table, "s"), "TYPE message, byte 7: type name has no terminating zero byte"},

		{"insert of an old row", false, wire('I', table, 'O', uint16(0)), "INSERT message, byte 5: tuple kind 0x4f instead of N"},
		{"insert without tuple", false, wire('I', table), "INSERT message, byte 5: tuple kind needs 1 bytes and 0 are left"},
		{"insert with unknown value kind", false, wire('I', table, 'N', uint16(2), 'n', 'x'), "INSERT message, byte 9: unknown value kind 0x78"},
		{"insert with too many columns", false, wire('I', table, 'N', uint16(0xFFFF)), "INSERT message, byte 6: 65535 columns exceed the server's limit of 1664"},
		{"insert with more columns than bytes", false, wire('I', table, 'N', uint16(3), 'n', 'n'), "INSERT message, byte 6: 3 columns cannot be in the 2 bytes that are left"},
		{"insert with a long value", false, wire('I', table, 'N', uint16(1), 't', uint32(0xFFFFFFFF), []byte("x")), "INSERT message, byte 13: value needs 4294967295 bytes and 1 are left"},
		{"insert with a cut length", false, wire('I', table, 'N', uint16(1), 'b', uint16(1)), "INSERT message, byte 9: value length needs 4 bytes and 2 are left"},
		{"insert with zero transaction id", true, wire('I', uint32(0), table, 'N', uint16(0)), "INSERT message, byte 1: transaction id is zero"},
		{"insert with two new tuples", false, wire('I', table, 'N', uint16(0), 'N', uint16(0)), "INSERT message, byte 8: 3 bytes follow the end of the message"},

		{"update with unknown tuple", false, wire('U', table, 'X', uint16(0)), "UPDATE message, byte 5: tuple kind 0x58 instead of N, or of K or O before it"},
		{"update with two old tuples", false, wire('U', table, 'K', uint16(0), 'O', uint16(0)), "UPDATE message, byte 8: tuple kind 0x4f instead of N, or of K or O before it"},
		{"update without new tuple", false, wire('U', table, 'K', uint16(0)), "UPDATE message, byte 8: tuple kind needs 1 bytes and 0 are left"},
		{"delete of a new row", false, wire('D', table, 'N', uint16(0)), "DELETE message, byte 5: tuple kind 0x4e instead of K or O"},
		{"delete without tuple", false, wire('D', table), "DELETE message, byte 5: tuple kind needs 1 bytes and 0 are left"},

		{"truncate with unknown option", false, wire('T', uint32(1), uint8(4), table), "TRUNCATE message, byte 5: flags 0x04 contain unknown bits"},
		{"truncate with a huge count", false, wire('T', uint32(0xFFFFFFFF), uint8(0), table), "TRUNCATE message, byte 1: 4294967295 relations cannot be in the 4 bytes that are left"},
		{"truncate with one relation too many", false, wire('T', uint32(1), uint8(0), table, table), "TRUNCATE message, byte 10: 4 bytes follow the end of the message"},

		{"logical message with unknown flag", false, wire('M', uint8(2), lsn.LSN(1), "p", uint32(0)), "MESSAGE message, byte 1: flags 0x02 contain unknown bits"},
		{"logical message without end of prefix", false, wire('M', uint8(1), lsn.LSN(1), []byte("ppppppp")), "MESSAGE message, byte 10: prefix has no terminating zero byte"},
		{"logical message with long content", false, wire('M', uint8(1), lsn.LSN(1), "p", uint32(2), []byte("x")), "MESSAGE message, byte 16: content needs 2 bytes and 1 are left"},
		{"logical message outside of transactions in a stream", true, wire('M', xid, uint8(0), lsn.LSN(1), "p", uint32(0)), "MESSAGE message, byte 5: a message that is not transactional stands inside a stream block"},

		{"stream start of no transaction", false, wire('S', uint32(0), uint8(1)), "STREAM START message, byte 1: transaction id is zero"},
		{"stream start that is neither first nor not", false, wire('S', xid, uint8(2)), "STREAM START message, byte 5: first segment must be 0 or 1, not 2"},
		{"stream commit with flags", false, wire('c', xid, uint8(8), lsn.LSN(1), lsn.LSN(2), moment), "STREAM COMMIT message, byte 5: flags 0x08 contain unknown bits"},
		{"stream abort with half a position", false, wire('A', xid, xid, lsn.LSN(1)), "STREAM ABORT message, byte 17: abort time needs 8 bytes and 0 are left"},
		{"stream abort with one byte more", false, wire('A', xid, xid, uint8(0)), "STREAM ABORT message, byte 9: abort LSN needs 8 bytes and 1 are left"},

		{"begin prepare without position", false, wire('b', lsn.LSN(0), lsn.LSN(2), moment, xid, "g"), "BEGIN PREPARE message, byte 1: prepare LSN is not set"},
		{"begin prepare without end", false, wire('b', lsn.LSN(1), lsn.LSN(0), moment, xid, "g"), "BEGIN PREPARE message, byte 9: end LSN is not set"},
		{"begin prepare with a long name", false, wire('b', lsn.LSN(1), lsn.LSN(2), moment, xid, longGID), "BEGIN PREPARE message, byte 29: transaction name of 200 bytes exceeds the server's limit of 199"},
		{"prepare with flags", false, wire('P', uint8(1), lsn.LSN(1), lsn.LSN(2), moment, xid, "g"), "PREPARE message, byte 1: flags 0x01 contain unknown bits"},
		{"prepare without end of name", false, wire('P', uint8(0), lsn.LSN(1), lsn.LSN(2), moment, xid, []byte("g")), "PREPARE message, byte 30: transaction name has no terminating zero byte"},
		{"stream prepare with flags", false, wire('p', uint8(1), lsn.LSN(1), lsn.LSN(2), moment, xid, "g"), "STREAM PREPARE message, byte 1: flags 0x01 contain unknown bits"},
		{"stream prepare with a long name", false, wire('p', uint8(0), lsn.LSN(1), lsn.LSN(2), moment, xid, longGID), "STREAM PREPARE message, byte 30: transaction name of 200 bytes exceeds the server's limit of 199"},
		{"commit prepared with flags", false, wire('K', uint8(1), lsn.LSN(1), lsn.LSN(2), moment, xid, "g"), "COMMIT PREPARED message, byte 1: flags 0x01 contain unknown bits"},
		{"commit prepared without position", false, wire('K', uint8(0), lsn.LSN(0), lsn.LSN(2), moment, xid, "g"), "COMMIT PREPARED message, byte 2: commit LSN is not set"},
		{"commit prepared without end", false, wire('K', uint8(0), lsn.LSN(1), lsn.LSN(0), moment, xid, "g"), "COMMIT PREPARED message, byte 10: end LSN is not set"},
		{"commit prepared with a long name", false, wire('K', uint8(0), lsn.LSN(1), lsn.LSN(2), moment, xid, longGID), "COMMIT PREPARED message, byte 30: transaction name of 200 bytes exceeds the server's limit of 199"},
		{"rollback prepared with flags", false, wire('r', uint8(1), lsn.LSN(1), lsn.LSN(2), moment, moment, xid, "g"), "ROLLBACK PREPARED message, byte 1: flags 0x01 contain unknown bits"},
		{"rollback prepared without end of prepare", false, wire('r', uint8(0), lsn.LSN(0), lsn.LSN(2), moment, moment, xid, "g"), "ROLLBACK PREPARED message, byte 2: end LSN of the prepare is not set"},
		{"rollback prepared without end", false, wire('r', uint8(0), lsn.LSN(1), lsn.LSN(0), moment, moment, xid, "g"), "ROLLBACK PREPARED message, byte 10: end LSN of the rollback is not set"},
		{"rollback prepared with a long name", false, wire('r', uint8(0), lsn.LSN(1), lsn.LSN(2), moment, moment, xid, longGID), "ROLLBACK PREPARED message, byte 38: transaction name of 200 bytes exceeds the server's limit of 199"},
	} {
		t.Run(test.name, func(t *testing.T) {
			decoder := decoderIn(t, test.inStream)
			message, err := decoder.Decode(test.frame)
			require.EqualError(t, err, "malformed pgoutput "+test.want)
			require.Nil(t, message)
			require.Equal(t, test.inStream, decoder.InStream())
			requireFormatError(t, test.frame, err)
		})
	}
}

// Every message cut at any place is refused, and so is every message with a
// byte more. The one exception is the protocol's own: a stream abort without
// position is the beginning of one with it.
func TestMessagesHaveOneLength(t *testing.T) {
	const shortAbort = 9
	for _, sample := range samples() {
		t.Run(sample.name, func(t *testing.T) {
			for length := range sample.frame {
				if Type(sample.frame[0]) == TypeStreamAbort && length == shortAbort {
					continue
				}
				_, err := decoderIn(t, sample.inStream).Decode(sample.frame[:length:length])
				requireFormatError(t, sample.frame[:length], err)
			}
			longer := append(bytes.Clone(sample.frame), 0)
			_, err := decoderIn(t, sample.inStream).Decode(longer)
			requireFormatError(t, longer, err)
		})
	}
}

// requireFormatError checks that an error says which message and where.
func requireFormatError(t testing.TB, frame []byte, err error) {
	t.Helper()
	var malformed *FormatError
	require.True(t, errors.As(err, &malformed), "%v is not a FormatError", err)
	require.NotEmpty(t, malformed.Reason)
	require.LessOrEqual(t, 0, malformed.Offset)
	require.LessOrEqual(t, malformed.Offset, len(frame))
	if len(frame) > 0 {
		require.Equal(t, Type(frame[0]), malformed.Type)
	}
}
