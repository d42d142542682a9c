package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

func TestCommitEnd(t *testing.T) {
	position := func(last byte) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, last} }
	commit := append([]byte{'C', 0}, append(append(position(1), position(2)...), position(3)...)...)
	streamed := append([]byte{'c', 0, 0, 0, 7, 0}, append(append(position(4), position(5)...), position(6)...)...)
	for _, test := range []struct {
		frame  source.Frame
		wanted lsn.LSN
	}{
		{source.Frame{Kind: source.Data, Payload: commit}, 2},
		{source.Frame{Kind: source.Data, Payload: streamed}, 5},
		{source.Frame{Kind: source.Data, Payload: []byte{'I', 0}}, 0},
		{source.Frame{Kind: source.Keepalive, WALEnd: 9}, 0},
	} {
		require.Equal(t, test.wanted, commitEnd(test.frame))
	}
	var d decoder.Decoder
	message, err := d.Decode(commit)
	require.NoError(t, err)
	require.Equal(t, lsn.LSN(2), message.(*decoder.Commit).EndLSN, "the decoder agrees")
}
