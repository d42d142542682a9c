package txn

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzAdd feeds any frames: nothing panics, the memory of tapes stays within
// the budget, and what is complete can be replayed.
func FuzzAdd(f *testing.F) {
	for _, stream := range scriptedStreams(f) {
		f.Add(uint16(2000), true, stream)
		f.Add(uint16(0), false, stream)
	}
	f.Fuzz(func(t *testing.T, limit uint16, spooled bool, stream []byte) {
		spool := &memorySpool{}
		options := Options{Budget: NewBudget(int64(limit))}
		if spooled {
			options.Spool = spool.create
		}
		a := NewAssembler(options)
		var ready []*Transaction
		for len(stream) >= 2 {
			size := min(int(binary.BigEndian.Uint16(stream)), len(stream)-2)
			transaction, err := a.Add(stream[2 : 2+size])
			stream = stream[2+size:]
			if transaction != nil {
				require.NoError(t, err)
				ready = append(ready, transaction)
			}
			checkBudget(t, a, ready)
			if err != nil {
				break
			}
		}
		require.NoError(t, a.Close())
		for _, transaction := range ready {
			for range 2 {
				changes, err := replay(transaction)
				require.NoError(t, err)
				require.Equal(t, transaction.Len(), changes)
			}
			transaction.Release()
		}
		require.Zero(t, a.Stats().MemoryBytes)
		require.Zero(t, a.Stats().SpooledBytes)
		require.Zero(t, spool.open())
	})
}

// scriptedStreams are the frames of each connection in the scripts, each with
// its length in front.
func scriptedStreams(f *testing.F) (streams [][]byte) {
	paths, err := filepath.Glob("testdata/scripts/*")
	require.NoError(f, err)
	for _, path := range paths {
		lines, err := os.ReadFile(path)
		require.NoError(f, err)
		s := &script{t: f}
		var stream []byte
		for line := range strings.Lines(string(lines)) {
			words := strings.Fields(line)
			switch {
			case len(words) == 0:
			case words[0] == "new":
				streams = append(streams, stream)
				stream, s = nil, &script{t: f}
			case messageVerbs[words[0]] != nil && line[0] != ' ':
				frame := s.encode(line)
				stream = binary.BigEndian.AppendUint16(stream, uint16(len(frame)))
				stream = append(stream, frame...)
			}
		}
		streams = append(streams, stream)
	}
	return streams
}
