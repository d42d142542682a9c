package source

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

func TestStatusKeepsZeroAndOrder(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC)
	message := appendStatus(nil, 0x1122334455667788, Position{Flushed: 0, Applied: 5}, now, true)
	require.Len(t, message, 39)
	var copyData pgproto3.CopyData
	require.NoError(t, copyData.Decode(message[5:]))
	require.Equal(t, []byte{
		'r', 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
		0, 0, 0, 0, 0, 0, 0, 0,
		0, 0, 0, 0, 0, 0, 0, 5,
	}, copyData.Data[:25])
	require.EqualValues(t, 1, copyData.Data[33])
	require.True(t, now.Equal(serverTime(copyData.Data[25:])))
	require.EqualValues(t, 0, appendStatus(nil, 1, Position{}, now, false)[38])
}

func TestParseFrameRefuses(t *testing.T) {
	for _, data := range [][]byte{
		nil, {'x'}, {'w'}, append([]byte{'w'}, make([]byte, 23)...), append([]byte{'k'}, make([]byte, 16)...), append([]byte{'k'}, make([]byte, 18)...),
	} {
		_, err := parseFrame(data)
		require.Error(t, err, "%x", data)
	}
}

// FuzzParseFrame compares with the library, whose parsers of the envelope are sound.
func FuzzParseFrame(f *testing.F) {
	f.Add(append([]byte{'w'}, make([]byte, 24)...))
	f.Add(append([]byte{'k', 0, 0, 0, 1, 2, 3, 4, 5, 0, 2, 0, 0, 0, 0, 0, 1}, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		frame, err := parseFrame(data)
		// The library counts in nanoseconds, which do not reach as far.
		reachable := frame.ServerTime.Year() > 1700 && frame.ServerTime.Year() < 2200
		if len(data) == 0 {
			require.Error(t, err)
			return
		}
		switch data[0] {
		case 'w':
			want, wantErr := pglogrepl.ParseXLogData(data[1:])
			require.Equal(t, wantErr == nil, err == nil)
			if err == nil && reachable {
				require.Equal(t, want, pglogrepl.XLogData{
					WALStart: frame.WALStart, ServerWALEnd: frame.WALEnd, ServerTime: frame.ServerTime, WALData: frame.Payload,
				})
			}
		case 'k':
			want, wantErr := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
			require.Equal(t, wantErr == nil, err == nil)
			if err == nil && reachable {
				require.Equal(t, want, pglogrepl.PrimaryKeepaliveMessage{
					ServerWALEnd: frame.WALEnd, ServerTime: frame.ServerTime, ReplyRequested: frame.ReplyRequested,
				})
			}
		default:
			require.Error(t, err)
		}
	})
}
