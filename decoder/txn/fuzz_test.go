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
// the budget, and what is complete can be replayed. Whoever follows the streamed
// ones, some steps after each frame, comes to the same.
func FuzzAdd(f *testing.F) {
	for _, stream := range scriptedStreams(f) {
		f.Add(uint16(2000), true, uint8(3), stream)
		f.Add(uint16(0), false, uint8(0), stream)
		f.Add(uint16(0), true, uint8(1), stream)
	}
	f.Fuzz(func(t *testing.T, limit uint16, spooled bool, steps uint8, stream []byte) {
		spool := &memorySpool{}
		watchers := &watchers{t: t}
		options := Options{Budget: NewBudget(int64(limit)), Streams: watchers}
		if spooled {
			options.Spool = spool.create
		}
		a := NewAssembler(options)
		watchers.assembler = a
		var ready []*Transaction
		for len(stream) >= 2 {
			size := min(int(binary.BigEndian.Uint16(stream)), len(stream)-2)
			transaction, err := watchers.add(stream[2 : 2+size])
			stream = stream[2+size:]
			if transaction != nil {
				require.NoError(t, err)
				ready = append(ready, transaction)
			}
			for _, w := range watchers.all {
				if w.follower == nil {
					w.follow()
				}
				for range steps {
					if !w.next(a.Completed()) {
						break
					}
				}
			}
			checkBudget(t, a, ready, watchers.opens()...)
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
			if open := transaction.Open(); open != nil {
				require.Equal(t, observe(transaction).changes, watchers.of(open).rest())
			}
			transaction.Release()
		}
		for _, w := range watchers.all {
			w.close()
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
